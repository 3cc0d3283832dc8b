"""Methods with the type of another one: overloads that are written once, and the type of calling a module.

`nn.Module` declares `__call__` as a function from anything to Any.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

Method = TypeVar("Method", bound=Callable[..., object])


def same_type(method: Method) -> Callable[[Callable[..., object]], Method]:
    """Declare that the decorated method has the type of another one, overloads included. It runs unchanged.

    >>> from typing import TYPE_CHECKING
    >>> class Double:
    ...     def forward(self, x: int) -> int:
    ...         return 2 * x
    ...     @same_type(forward)
    ...     def twice(self, x: object) -> object:
    ...         return self.forward(self.forward(x))
    ...     __call__ = forward
    ...     if TYPE_CHECKING:
    ...         @same_type(forward)
    ...         def __call__(self, *args: object, **kwargs: object) -> object: ...
    >>> Double()(3), Double().twice(3)
    (6, 12)
    """
    return lambda declared: cast(Method, declared)
