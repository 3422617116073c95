"""Which generation the card is of."""

from enum import Enum


class synDeviceType(Enum):
    """As the driver numbers them."""

    synDeviceGaudi2 = 4
    synDeviceGaudi3 = 5


def _get_device_type():
    return synDeviceType.synDeviceGaudi2
