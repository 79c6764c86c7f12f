"""The guarantee on two pages: for a lawyer to read and for a machine to check."""

from capri.privacy.certificate.declaration import Declaration
from capri.privacy.certificate.document import Certificate
from capri.privacy.certificate.of_devices import certify_devices
from capri.privacy.certificate.of_fit import certify_fit
from capri.privacy.certificate.of_policy import certify_policy

__all__ = ["Certificate", "Declaration", "certify_devices", "certify_fit", "certify_policy"]
