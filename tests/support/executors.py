"""Executors for tests, which do their work in this process."""

import collections
import concurrent.futures as cf
import uuid
from unittest import mock

import cloudpickle

SEEN = []
"""What functions record in this process, also in threads that unpack a copy of them."""


class Promise:
    """The future of a plain executor: what a sweep needs of a future, and no more."""

    def __init__(self, outcome, asks):
        self.outcome, self.asks = outcome, asks

    def done(self):
        """Return true after it was asked some times."""
        self.asks -= 1
        return self.asks < 0

    def result(self):
        value = self.outcome()
        if isinstance(value, BaseException):
            raise value
        return value


class Plain:
    """An executor that does the work when the result is asked for."""

    def __init__(self, fails=None, asks=0):
        self.fails, self.asks = fails or {}, asks
        self.calls, self.open, self.most, self.submitted = [], 0, 0, 0

    def submit(self, fn, *args):
        firsts = [int(asked.numbers[0]) for asked in args[2]]
        self.calls += firsts
        self.submitted += 1
        self.open += 1
        self.most = max(self.most, self.open)

        def outcome():
            self.open -= 1
            if any(self.calls.count(i) <= self.fails.get(i, 0) for i in firsts):
                return RuntimeError("the node went away")
            return fn(*args)

        return Promise(outcome, self.asks)


class Cluster:
    """Processes that keep functions of their own, imitated in this process.

    `choose(calls, free)` is the number of the free process that takes the next call.
    A process that computes is busy while the futures are asked 20 times. In the calls
    `deaths` it dies, and another replaces it; if `single`, it ends after each call.
    `carried` counts the calls with more than 10^5 bytes.
    """

    def __init__(self, processes, choose, deaths=(), single=False):
        self.processes = [self.process() for _ in range(processes)]
        self.free_at = [0] * processes
        self.choose, self.deaths, self.single = choose, deaths, single
        self.queue, self.taken, self.now = collections.deque(), 0, 0
        self.carried = self.sent = self.submitted = 0

    def process(self):
        return {}, uuid.uuid4().hex

    def submit(self, fn, *args):
        size = len(cloudpickle.dumps((fn, args)))
        self.carried, self.sent = self.carried + (size > 1e5), self.sent + size
        self.submitted += 1
        future = cf.Future()
        self.queue.append((future, fn, args))
        future.done = lambda: self.work() or cf.Future.done(future)
        return future

    def work(self):
        """Let a free process take the next call."""
        self.now += 1
        free = [i for i, time in enumerate(self.free_at) if time <= self.now]
        if not self.queue or not free:
            return
        future, fn, args = self.queue.popleft()
        number = free[self.choose(self.taken, len(free))]
        self.taken += 1
        jobs, name = self.processes[number]
        if self.single or self.taken in self.deaths:
            self.processes[number] = self.process()
        if self.taken in self.deaths:
            future.set_exception(RuntimeError("the node went away"))
            return
        worker = "eqx_pipe._sweep.worker"
        with mock.patch(f"{worker}._sweeps", jobs):
            with mock.patch(f"{worker}._PROCESS", name):
                answer = fn(*args)
        self.free_at[number] = self.now + (1 if answer[2] is None else 20)
        future.set_result(answer)


class Jobs(Cluster):
    """An executor that starts a job for each call, such as those of submitit."""

    def __init__(self, processes, choose, deaths=()):
        super().__init__(processes, choose, deaths, single=True)
        self.arrays = []

    def map_array(self, fn, *arguments):
        self.arrays.append(len(arguments[0]))
        return [self.submit(fn, *each) for each in zip(*arguments, strict=True)]
