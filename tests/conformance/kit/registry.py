"""The groups and cases there are, and what a case raises when it does not hold."""

GROUPS = {}            # name -> Group
CASES = []             # Case, in order of definition


class Group:
    """One configuration of the proxy; its cases share one running proxy (none when run is False).

    config: what differs from base_config, or a function from the group's directory to that."""

    def __init__(self, name, config=None, run=True, store="redis", manager=False, settle=True):
        self.name, self.config, self.run = name, config or {}, run
        self.store, self.manager, self.settle = store, manager, settle
        GROUPS[name] = self


class Case:
    def __init__(self, group, name, func, page):
        self.group, self.name, self.func, self.page = group, name, func, page


def case(group, name, page):
    """Registers a function of one argument (Context) as a case. page: where docs/contract says what it expects."""
    def register(func):
        if any(c.name == name for c in CASES):
            raise SystemExit(f"two cases are named {name}")
        CASES.append(Case(group, name, func, page))
        return func
    return register


def table(group, prefix, page, rows):
    """Registers one case a row: rows are (name, arg, ...) and the decorated function gets (t, arg, ...)."""
    def register(func):
        for row in rows:
            case(group, f"{prefix}/{row[0]}", page)(lambda t, row=row: func(t, *row[1:]))
        return func
    return register


class Mismatch(Exception):
    def __init__(self, what, want, got):
        super().__init__(f"{what}: expected {short(want)}, got {short(got)}")


def short(value, limit=400):
    text = value if isinstance(value, str) else repr(value)
    text = text.replace("\n", "\\n").replace("\r", "\\r")
    return text if len(text) <= limit else text[:limit] + "..."
