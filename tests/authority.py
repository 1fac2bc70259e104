"""An authority of certificates, as the `openssl` command makes one."""

from __future__ import annotations

import subprocess
from pathlib import Path

EC = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]


class Authority:
    """Signs certificates in a folder; `file` is its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "authority.pem"
        key = folder / "authority.key"
        subject = ["-subj", "/CN=authority", "-keyout", str(key), "-out", str(self.file)]
        subprocess.run(["openssl", "req", "-x509", *EC, *subject], check=True, capture_output=True)

    def sign(self, name: str, usage: str, names: str = "") -> tuple[Path, Path]:
        """Returns the files of a certificate and of its key."""
        signed, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        extensions = self.folder / "extensions"
        extensions.write_text(f"extendedKeyUsage={usage}\n" + (f"subjectAltName={names}\n" if names else ""))
        request = ["openssl", "req", "-new", *EC, "-subj", f"/CN={name}", "-keyout", str(key)]
        asked = subprocess.run(request, check=True, capture_output=True).stdout
        key.chmod(0o600)
        by = ["-CA", str(self.file), "-CAkey", str(self.folder / "authority.key"), "-CAcreateserial"]
        sign = ["openssl", "x509", "-req", *by, "-extfile", str(extensions), "-days", "2", "-out", str(signed)]
        subprocess.run(sign, input=asked, check=True, capture_output=True)
        return signed, key
