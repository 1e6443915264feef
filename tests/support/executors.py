"""Executors for tests, which do their work in this process."""


class Promise:
    """The future of a plain executor: a result, and no more."""

    def __init__(self, outcome):
        self.outcome = outcome

    def result(self):
        value = self.outcome()
        if isinstance(value, BaseException):
            raise value
        return value


class Asked(Promise):
    """With `done` and `cancel`, as in Dask and submitit."""

    def done(self):
        return True

    def cancel(self):
        return False


class Plain:
    """An executor that does the work when the result is asked for."""

    def __init__(self, promise=Promise, fails=None):
        self.promise, self.fails = promise, fails or {}
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

        return self.promise(outcome)
