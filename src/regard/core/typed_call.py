"""The type of calling a module. `nn.Module` declares `__call__` as a function from anything to Any."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Method = TypeVar("Method", bound=Callable[..., object])


def same_type(method: Method) -> Callable[[Callable[..., object]], Method]:
    """Declare that a method has the type of another one, overloads included. Only type checkers call this.

    >>> from typing import TYPE_CHECKING
    >>> class Double:
    ...     def forward(self, x: int) -> int:
    ...         return 2 * x
    ...     __call__ = forward
    ...     if TYPE_CHECKING:
    ...         @same_type(forward)
    ...         def __call__(self, *args: object, **kwargs: object) -> object: ...
    >>> Double()(3)
    6
    """
    return lambda declared: method
