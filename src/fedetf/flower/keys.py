"""Keys to try things out: a certificate authority, the server's certificate, and a key pair for each site."""

import argparse
import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedetf.errors import UserError
from fedetf.files import make_folder, write_whole
from fedetf.flower.new import are_names

DAYS = 365
CURVE = ec.SECP384R1()
Key = ec.EllipticCurvePrivateKey
PEM, PKCS8, BARE = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
OPENSSH = serialization.PrivateFormat.OpenSSH


def main(arguments: Sequence[str] | None = None) -> None:
    """What the app's make_keys.py does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="a new folder for the keys, outside the app's")
    parser.add_argument("sites", nargs="+", help="the names of the sites")
    parser.add_argument("--host", default="127.0.0.1", help="name or address by which sites reach the server")
    options = parser.parse_args(arguments)
    try:
        make_keys(options.folder, options.sites, options.host)
    except UserError as error:
        parser.error(str(error))


def make_keys(folder: Path, sites: Sequence[str], host: str = "127.0.0.1") -> None:
    """Write ca.crt, ca.key, server.crt, server.key and, for each site, its private key and its ``.pub``."""
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} exists already and is not overwritten; give another folder")
    if not are_names(sites) or {"ca", "server"} & set(sites):
        raise UserError(f"sites are different names of letters, digits and hyphens, none of ca and server: {sites}")
    make_folder(folder)
    authority = ec.generate_private_key(CURVE)
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "fedetf test CA")])
    _write_pair(folder, "ca", authority, _certificate(issuer, authority, issuer, authority, None))
    server = ec.generate_private_key(CURVE)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)])
    _write_pair(folder, "server", server, _certificate(subject, server, issuer, authority, host))
    for site in sites:
        make_site_key(folder, site)


def make_site_key(folder: Path, site: str) -> None:
    """A key pair as Flower's nodes take it. A real site makes its own, and hands over the ``.pub`` only."""
    key = ec.generate_private_key(CURVE)
    write_whole(folder / site, key.private_bytes(PEM, OPENSSH, BARE), private=True)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    write_whole(folder / f"{site}.pub", public + b"\n")


def _certificate(subject: x509.Name, key: Key, issuer: x509.Name, authority: Key, host: str | None) -> x509.Certificate:
    """A certificate for a server at ``host``, or for the authority itself."""
    now = datetime.datetime.now(datetime.timezone.utc)
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=host is None,
        crl_sign=host is None,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.BasicConstraints(ca=host is None, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
    )
    if host is not None:
        names = [_general_name(host), _general_name("127.0.0.1"), x509.DNSName("localhost")]
        builder = builder.add_extension(x509.SubjectAlternativeName(list(dict.fromkeys(names))), critical=False)
    return builder.sign(authority, hashes.SHA384())


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_pair(folder: Path, name: str, key: Key, certificate: x509.Certificate) -> None:
    write_whole(folder / f"{name}.key", key.private_bytes(PEM, PKCS8, BARE), private=True)
    write_whole(folder / f"{name}.crt", certificate.public_bytes(PEM))
