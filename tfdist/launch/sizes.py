"""How many replicas each instance gets: the arithmetic of poprun."""

from __future__ import annotations

from tfdist.launch.errors import UsageError


def total_replicas(num_instances: int, num_replicas: int | None) -> int:
    """Returns how many copies of the model the run has: one per instance unless told otherwise.

    Raises:
      UsageError: If they cannot be divided evenly between the instances.
    """
    if num_replicas is None:
        return num_instances
    if num_replicas % num_instances:
        raise UsageError(
            f"--num-replicas is {num_replicas} and --num-instances is {num_instances}, and "
            "instances get equally many replicas each.\n"
            f"The nearest that work: --num-replicas {_near_multiples(num_replicas, num_instances)},"
            f" or --num-instances {_near_divisors(num_replicas, num_instances)}."
        )
    return num_replicas


def _near_multiples(number: int, of: int) -> str:
    below = number // of * of
    return f"{below} or {below + of}" if below else f"{of}"


def _near_divisors(of: int, number: int) -> str:
    divisors = [one for one in range(1, of + 1) if of % one == 0]
    below = [one for one in divisors if one < number][-1:]
    above = [one for one in divisors if one > number][:1]
    return " or ".join(str(one) for one in below + above)
