"""The webhook's own certificate authority, and the certificates that it signs. Pure, except for random keys."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS = 3650
SERVER_DAYS = 90
RENEWED_AT = 2 / 3
"""of its life a certificate is replaced"""
EARLY = timedelta(minutes=5)
"""clocks differ"""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as PEM."""

    certificate: str
    key: str


def is_due(certificate: str, now: datetime) -> bool:
    """Return whether a certificate should be replaced, because most of its life is over or it cannot be read."""
    try:
        found = x509.load_pem_x509_certificate(certificate.encode())
    except ValueError:
        return True
    begun, ends = found.not_valid_before_utc, found.not_valid_after_utc
    return now >= begun + (ends - begun) * RENEWED_AT


def expires(certificate: str) -> float:
    """Return when a certificate ends [unix s]."""
    return x509.load_pem_x509_certificate(certificate.encode()).not_valid_after_utc.timestamp()


def names_of(certificate: str) -> tuple[str, ...]:
    """Return the hosts that a certificate is for."""
    found = x509.load_pem_x509_certificate(certificate.encode())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return tuple(sorted(str(each.value) for each in names))


def is_signed_by(certificate: str, authority: str) -> bool:
    """Return whether an authority has signed a certificate."""
    try:
        signed = x509.load_pem_x509_certificate(certificate.encode())
        signed.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.encode()))
    except Exception:  # noqa: BLE001  # any error: a new certificate is made
        return False
    return True


def authority(now: datetime) -> Pair:
    """Return a new authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rljob webhook authority")])
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    made = (
        _begun(name, name, key.public_key(), now, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    return _pair(made, key)


def server(hosts: Sequence[str], signer: Pair, now: datetime) -> Pair:
    """Return a new certificate for these hosts, names or addresses, signed by an authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    above = x509.load_pem_x509_certificate(signer.certificate.encode())
    its_key = serialization.load_pem_private_key(signer.key.encode(), None)
    assert isinstance(its_key, ec.EllipticCurvePrivateKey)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    names = x509.SubjectAlternativeName([_host(host) for host in hosts])
    made = (
        _begun(name, above.subject, key.public_key(), now, SERVER_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(names, critical=False)
        .sign(its_key, hashes.SHA256())
    )
    return _pair(made, key)


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLY)
        .not_valid_after(now + timedelta(days=days))
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pair(certificate: x509.Certificate, key: CertificateIssuerPrivateKeyTypes) -> Pair:
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Pair(certificate.public_bytes(serialization.Encoding.PEM).decode(), private.decode())


def now() -> datetime:
    return datetime.now(UTC)
