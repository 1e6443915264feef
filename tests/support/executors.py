"""Executors for tests, which do their work in this process."""


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
        self.calls, self.open, self.most = [], 0, 0

    def submit(self, fn, *args):
        first = int(args[1][0])
        self.calls.append(first)
        self.open += 1
        self.most = max(self.most, self.open)

        def outcome():
            self.open -= 1
            if self.calls.count(first) <= self.fails.get(first, 0):
                return RuntimeError("the node went away")
            return fn(*args)

        return Promise(outcome, self.asks)
