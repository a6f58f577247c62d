"""How fast known devices are by their data sheets, and what share of it engines reach.

    a prompt's token takes 2 FLOP x parameters / (FLOP/s x `reached_compute` x devices) seconds

The share is an assumption: nothing here was compared with a GPU.
"""

from dataclasses import dataclass

reached_compute = 0.5


@dataclass(frozen=True, slots=True)
class Speed:
    """Dense 16-bit matrix arithmetic and memory, from the maker's data sheet."""

    flops: float
    bytes_per_s: float


speeds = {
    "H100": Speed(989e12, 3.35e12),
    "H200": Speed(989e12, 4.8e12),
    "B200": Speed(2250e12, 8.0e12),
    "A100": Speed(312e12, 2.04e12),
    "L40S": Speed(362e12, 0.864e12),
    "L4": Speed(121e12, 0.3e12),
    "A10": Speed(125e12, 0.6e12),
    "MI300X": Speed(1307e12, 5.3e12),
    "MI325X": Speed(1307e12, 6.0e12),
}


def prompt_token_s(parameters: int, speed: Speed, devices: int) -> float:
    """What the matrices of one token of a prompt take."""
    return 2 * parameters / (speed.flops * reached_compute * devices)
