"""Cases that wait more than they work, several at once."""

from concurrent.futures import ThreadPoolExecutor


def failures(check, cases, at_once=8):
    """Run `check` on each of `cases`: for those where it raised, what it said."""

    def failure(case):
        try:
            check(case)
        except Exception as error:
            return f"{type(error).__name__} {error}"

    with ThreadPoolExecutor(at_once) as pool:
        said = dict(zip(cases, pool.map(failure, cases), strict=True))
    return {case: why for case, why in said.items() if why}
