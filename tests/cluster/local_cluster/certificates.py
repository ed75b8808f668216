"""Certificates of one cluster, by openssl: an authority, the server's, and one for each client.

They live as long as the cluster's directory; nothing outside it trusts them.
"""

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from local_cluster.errors import ClusterError

DAYS = "3650"
# An RSA key takes a hundred times as long to make.
P256 = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
RSA = ("-newkey", "rsa:2048")


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its private key, as files."""

    certificate: Path
    key: Path


class Authority:
    """Signs the certificates of one cluster into one directory.

    Raises ClusterError if openssl is missing or refuses.
    """

    def __init__(self, directory: Path, name: str = "rljob-test-cluster", is_rsa: bool = False) -> None:
        """`is_rsa`: with an RSA key in the form PKCS #1, which a program needs that reads no other."""
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self.own = self._files("ca")
        # Key usage must be stated: Python's TLS (VERIFY_X509_STRICT) refuses an authority without it.
        usage = ["-addext", "keyUsage=critical,keyCertSign,cRLSign"]
        names = ["-addext", f"subjectAltName=DNS:{name}"]
        self._request(self.own, f"/CN={name}", ["-x509", "-days", DAYS, *usage, *names], RSA if is_rsa else P256)
        if is_rsa:
            _openssl(["rsa", "-traditional", "-in", str(self.own.key), "-out", str(self.own.key)])

    def server(self, name: str, hosts: Sequence[str], addresses: Sequence[str]) -> Certificate:
        """Return a certificate for a server that answers at these DNS names and IP addresses."""
        names = ",".join([*(f"DNS:{host}" for host in hosts), *(f"IP:{address}" for address in addresses)])
        return self._signed(name, f"/CN={name}", f"extendedKeyUsage=serverAuth,clientAuth\nsubjectAltName={names}\n")

    def client(self, name: str, user: str, groups: Sequence[str] = ()) -> Certificate:
        """Return a certificate with which a client is this Kubernetes user, in these groups."""
        subject = "".join([*(f"/O={group}" for group in groups), f"/CN={user}"])
        return self._signed(name, subject, "extendedKeyUsage=clientAuth\n")

    def key_pair(self, name: str) -> Certificate:
        """Return a self-signed pair: only the keys matter, those that sign service account tokens."""
        pair = self._files(name)
        self._request(pair, f"/CN={name}", ["-x509", "-days", DAYS])
        return pair

    def _signed(self, name: str, subject: str, extensions: str) -> Certificate:
        pair = self._files(name)
        request, extension_file = pair.key.with_suffix(".csr"), pair.key.with_suffix(".ext")
        extension_file.write_text(f"basicConstraints=CA:FALSE\nauthorityKeyIdentifier=keyid\n{extensions}")
        self._request(Certificate(request, pair.key), subject, [])
        authority = ["-CA", str(self.own.certificate), "-CAkey", str(self.own.key), "-CAcreateserial"]
        files = ["-in", str(request), "-out", str(pair.certificate), "-extfile", str(extension_file)]
        _openssl(["x509", "-req", "-days", DAYS, *authority, *files])
        return pair

    def _request(self, into: Certificate, subject: str, flags: Sequence[str], key: Sequence[str] = P256) -> None:
        _openssl(
            ["req", *key, "-nodes", "-subj", subject, "-keyout", str(into.key), "-out", str(into.certificate), *flags]
        )

    def _files(self, name: str) -> Certificate:
        return Certificate(self._directory / f"{name}.crt", self._directory / f"{name}.key")


def _openssl(arguments: Sequence[str]) -> None:
    if shutil.which("openssl") is None:
        raise ClusterError("no `openssl` on PATH, and it signs the cluster's certificates; apt-get install openssl")
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"`openssl {' '.join(arguments)}` failed with {done.returncode}: {done.stderr.strip()}")
