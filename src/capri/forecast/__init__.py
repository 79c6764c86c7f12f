"""What to expect of a configuration before any user is touched."""

from capri.forecast.result import Forecast
from capri.forecast.run import forecast

__all__ = ["Forecast", "forecast"]
