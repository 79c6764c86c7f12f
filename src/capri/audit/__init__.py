"""Attack the real code as its users could, and see how much privacy loss can be proved.

:func:`~capri.audit.scenarios.audit_policy` plays private runs through ``act`` and ``update``,
:func:`~capri.audit.device.audit_device` reads the bytes that a device uploads, and
:func:`~capri.audit.fit.audit_fit` the release of a fit: each in two worlds that differ in one user.
A proof above the claim is a bug; one close below it shows that the test has teeth and that little
noise is wasted.
"""
