"""Function signatures: a plain reward function gets only those of TRL's values that its signature names.

TRL passes every column and every value of its own to every reward function, so the function needs `**kwargs`. In this
package a function may lack `**kwargs`. A function with `**kwargs` gets all values, as in TRL.
"""

import asyncio
import functools
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any

from .validation import ConfigError, did_you_mean, fits, spelled


_OPTIONS: dict[str, Any] = {}
if sys.version_info >= (3, 14):  # annotations are evaluated only now, and may name what only a type checker imports
    import annotationlib

    _OPTIONS["annotation_format"] = annotationlib.Format.FORWARDREF


def signature_of(function: Callable[..., Any], follow_wrapped: bool = True) -> inspect.Signature:
    """Return a function's signature, also if an annotation has a name that only a type checker imports."""
    return inspect.signature(function, follow_wrapped=follow_wrapped, **_OPTIONS)


def name_of(function: Callable[..., Any]) -> str:
    """Return the name under which TRL logs a reward function."""
    function = _of_partial(function)
    return getattr(function, "__name__", type(function).__name__)


def is_async(function: Any) -> bool:
    """Return whether a call returns a coroutine: the function, or an object's `__call__`, is async."""
    function = _of_partial(function)
    return any(map(inspect.iscoroutinefunction, (function, getattr(function, "__call__", None))))  # noqa: B004


def synchronous(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs the coroutine of an async one and returns its result; another function as it is."""
    if not is_async(function):
        return function

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return asyncio.run(function(*args, **kwargs))

    run.__signature__ = signature_of(function)  # type: ignore[attr-defined]
    return run


def needed(function: Callable[..., Any]) -> list[str]:
    """Return the names of the values without which a function cannot be called."""
    named = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    return [n for n, p in _parameters(function).items() if p.kind in named and p.default is Parameter.empty]


def has_parameter(function: Callable[..., Any], name: str) -> bool:
    """Return whether a function has a parameter of that name; `*args` and `**kwargs` are none."""
    variadic = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return name in _parameters(function) and _parameters(function)[name].kind not in variadic


def is_keyword_only(function: Callable[..., Any], name: str) -> bool:
    """Return whether a function has a parameter of that name that only a keyword can set."""
    return name in _parameters(function) and _parameters(function)[name].kind is Parameter.KEYWORD_ONLY


def taking_all(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that may be given any keywords, and passes on those that `function` names."""
    if is_async(function):

        @functools.wraps(function)
        async def pass_on(**values: Any) -> Any:
            return await call(function, values)

    else:

        @functools.wraps(function)
        def pass_on(**values: Any) -> Any:
            return call(function, values)

    pass_on.__name__ = name_of(function)  # an object and a partial have none
    return pass_on


def call(function: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    """Call a function with those of `values` that it takes.

    Raises:
        TypeError: the function needs a value that is not given.
    """
    parameters = _parameters(function)
    missing = [name for name in needed(function) if name not in values]
    if missing:
        raise TypeError(f"it needs {missing[0]!r}, given are {', '.join(values) or 'none'}")
    in_front = [name for name, p in parameters.items() if p.kind is Parameter.POSITIONAL_ONLY]
    keywords = {
        n for n, p in parameters.items() if p.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    }
    takes_all = any(p.kind is Parameter.VAR_KEYWORD for p in parameters.values())
    by_name = {n: v for n, v in values.items() if n in keywords or (takes_all and n not in in_front)}
    return function(*(values.get(name, parameters[name].default) for name in in_front), **by_name)


NAMED = ("name", "args")  # the keys of an option's value with arguments


def name_and_args(option: str, value: Any, example: str) -> tuple[Any, dict[str, Any]]:
    """Split an option's value, a name (a path, a function) or `{"name": ..., "args": {...}}`, into the two.

    Args:
        option (`str`): the option, for the message.
        value (`Any`): its value. A value that is not a dict is a name without arguments.
        example (`str`): a value with arguments, for the message.

    Raises:
        ConfigError: the value is a dict without a name, with other keys, or with `args` that are not a dict.
    """
    if not isinstance(value, Mapping):
        return value, {}
    args = value.get("args")
    args = {} if args is None else args  # YAML may have `args:` with nothing after it
    others = {key: item for key, item in value.items() if key not in NAMED}
    if "name" in value and not others and isinstance(args, Mapping):
        return value["name"], dict(args)
    if "name" in value and isinstance(args, Mapping):  # the arguments were written beside the name, or under kwargs
        if isinstance(others.get("kwargs"), Mapping):
            others |= others.pop("kwargs")
        meant = {"name": value["name"], "args": {**args, **others}}
        example = json.dumps(meant, ensure_ascii=False, skipkeys=True, default=lambda item: "...")
    raise ConfigError(f"{option}={dict(value)!r}: with arguments it is {example}.")


def check_arguments(function: Callable[..., Any], args: Mapping[str, Any], leading: int, takes: str) -> None:
    """Check arguments that a user wrote against a function's signature, before it is called.

    Args:
        function (`Callable`): the function to be called.
        args (`Mapping[str, Any]`): the user's arguments, by name.
        leading (`int`): number of leading parameters that are not the user's.
        takes (`str`): the parameters that the function must take, for the message.

    Raises:
        ConfigError: an argument does not exist, is missing, or has a value that its annotation does not allow.
    """
    try:
        signature = signature_of(function)
    except (TypeError, ValueError):  # some functions written in C
        return
    taken = dict(list(signature.parameters.items())[leading:])
    named = {n: p for n, p in taken.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    if not any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values()):
        for unknown in [name for name in args if name not in named]:
            takes = f"takes {', '.join(named)}" if named else "takes none"
            raise ConfigError(f"there is no argument {unknown!r}; it {takes}.{did_you_mean(unknown, named)}")
    missing = [n for n, p in named.items() if p.default is p.empty and n not in args]
    if missing:
        shown = ", ".join(f'"{n}": ...' for n in missing)
        raise ConfigError(f'it needs {", ".join(missing)}: {{"name": ..., "args": {{{shown}}}}}.')
    for name, value in args.items():
        if name in named and not fits(value, named[name].annotation):
            raise ConfigError(f"{name}={value!r} must be {spelled(named[name].annotation)}.")
    try:
        signature.bind(*[None] * leading, **args)
    except TypeError as error:
        raise ConfigError(f"it must take {takes}: {error}.") from None


def _of_partial(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _parameters(function: Callable[..., Any]) -> Mapping[str, Parameter]:
    try:
        return _read(function)
    except TypeError:  # an unhashable object
        return _read.__wrapped__(function)


@functools.lru_cache(maxsize=256)  # reading a signature takes longer than most rewards
def _read(function: Callable[..., Any]) -> Mapping[str, Parameter]:
    # The signature of the called function, not of the wrapped one: a decorator may supply the wrapped one's values.
    try:
        return signature_of(function, follow_wrapped=False).parameters
    except (TypeError, ValueError):  # some functions written in C
        return {"values": Parameter("values", Parameter.VAR_KEYWORD)}
