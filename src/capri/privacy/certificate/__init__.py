"""The guarantee on two pages: for a lawyer to read and for a machine to check."""

from capri.privacy.certificate.certify import certify_devices, certify_fit, certify_policy
from capri.privacy.certificate.document import Certificate, Declaration

__all__ = ["Certificate", "Declaration", "certify_devices", "certify_fit", "certify_policy"]
