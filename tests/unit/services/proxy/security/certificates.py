"""Certificates for tests, made by the `openssl` program."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

_NEW_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]


@dataclass(frozen=True)
class Certificates:
    """PEM files in one folder: `<name>.pem` and `<name>.key`."""

    folder: Path

    def authority(self, name: str) -> None:
        """Makes one that may sign others."""
        self._openssl(["req", "-x509", *_NEW_KEY, "-days", "2", "-subj", f"/CN={name}", *self._out(name)])

    def signed(self, name: str, subject: str, authority: str, address: str = "") -> None:
        """Makes one that `authority` has signed. `subject`: such as /O=Analytics/CN=ada; `address`: of a server, such as
        IP:127.0.0.1."""
        request = str(self.folder / f"{name}.csr")
        key = str(self.folder / f"{name}.key")
        extension = ["-addext", f"subjectAltName={address}"] if address else []
        self._openssl(
            ["req", "-new", "-utf8", *_NEW_KEY, "-subj", subject, *extension, "-keyout", key, "-out", request]
        )
        signer = ["-CA", self.certificate(authority), "-CAkey", self.key(authority), "-CAcreateserial"]
        self._openssl(
            [
                "x509",
                "-req",
                "-in",
                request,
                *signer,
                "-days",
                "2",
                "-copy_extensions",
                "copy",
                "-out",
                self.certificate(name),
            ]
        )

    def certificate(self, name: str) -> str:
        return str(self.folder / f"{name}.pem")

    def key(self, name: str) -> str:
        return str(self.folder / f"{name}.key")

    def _out(self, name: str) -> list[str]:
        return ["-keyout", self.key(name), "-out", self.certificate(name)]

    def _openssl(self, arguments: list[str]) -> None:
        done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
