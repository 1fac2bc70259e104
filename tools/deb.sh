#!/bin/sh
# Makes a Debian package of the release build: deb.sh FOLDER. The folder gets outboard_VERSION_amd64.deb.
set -eu
out=$1
version=$(sed -n '/^\[workspace.package\]/,/^version/s/^version = "\(.*\)"/\1/p' Cargo.toml)
root=$out/deb
rm -rf "$root"
make --no-print-directory install CARGO=: PREFIX=/usr DESTDIR="$root"
strip --strip-unneeded "$root/usr/bin/outboard"
find "$root/usr/lib/outboard" -type f -exec strip --strip-unneeded {} + -exec chmod 644 {} +
gzip -9n "$root/usr/share/man/man1/outboard.1"
install -D -m 644 -t "$root/usr/lib/systemd/system" packaging/systemd/outboard.service packaging/systemd/outboard.socket
install -D -m 644 packaging/systemd/outboard.sysusers "$root/usr/lib/sysusers.d/outboard.conf"
install -D -m 644 packaging/serve.toml "$root/etc/outboard/serve.toml"
install -D -m 644 -t "$root/usr/share/doc/outboard" README.md docs/operating.md
cat LICENSE-APACHE LICENSE-MIT >"$root/usr/share/doc/outboard/copyright"
chmod 644 "$root/usr/share/doc/outboard/copyright"
mkdir -p "$root/DEBIAN"
# The newest glibc whose symbols are used.
glibc=$(cat "$root/usr/bin/outboard" "$root"/usr/lib/outboard/*.so* | grep -ao 'GLIBC_2\.[0-9]*' | sort -Vu | tail -1)
cat >"$root/DEBIAN/control" <<END
Package: outboard
Version: $version
Architecture: amd64
Maintainer: The Outboard authors <outboard@localhost>
Depends: libc6 (>= ${glibc#GLIBC_}), libgcc-s1
Section: science
Priority: optional
Installed-Size: $(du -sk "$root" | cut -f1)
Description: use a GPU in another process or machine
 An unmodified CUDA program runs here, on a GPU of another process or machine.
 The package has the command, the libraries that take the place of NVIDIA's,
 and units for systemd, which are not started.
END
echo /etc/outboard/serve.toml >"$root/DEBIAN/conffiles"
cat >"$root/DEBIAN/postinst" <<'END'
#!/bin/sh
set -e
if [ "$1" = configure ] && command -v systemd-sysusers >/dev/null; then
    systemd-sysusers outboard.conf
fi
END
chmod 755 "$root/DEBIAN/postinst"
dpkg-deb --root-owner-group --build "$root" "$out/outboard_${version}_amd64.deb"
