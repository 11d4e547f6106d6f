"""Files that TLS to brokers needs, as options of the source and of the command name them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lockstep.runtime.channels import ChannelTls


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """Paths of files in PEM; "" where there is none. Without any, brokers are reached without TLS."""

    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""

    def __post_init__(self) -> None:
        """Raises `ValueError` for what is half of something."""
        if bool(self.certificate_file) != bool(self.key_file):
            raise ValueError("tlsCertificateFile and tlsKeyFile go together")
        if self.certificate_file and not self.ca_file:
            raise ValueError("tlsCertificateFile needs tlsCaFile")

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> "TlsOptions":
        """From options of the source, by their names in lower case."""
        return cls(
            given.get("tlscafile", ""), given.get("tlscertificatefile", ""), given.get("tlskeyfile", "")
        )

    def plain(self) -> dict[str, str]:
        """As options of the source."""
        return {
            "tlsCaFile": self.ca_file,
            "tlsCertificateFile": self.certificate_file,
            "tlsKeyFile": self.key_file,
        }

    def load(self) -> ChannelTls | None:
        """What is in the files now; None: no TLS. Raises `OSError`."""
        if not self.ca_file:
            return None
        roots = Path(self.ca_file).read_bytes()
        if not self.certificate_file:
            return ChannelTls(roots)
        return ChannelTls(roots, Path(self.certificate_file).read_bytes(), Path(self.key_file).read_bytes())
