#!/bin/sh
# Make a Debian package from a wheel: build.sh WHEEL DIR [PIP_OPTION…]. It needs dpkg-deb, and pip in $PIP.
# The package has the systemd unit and, in /opt/trackside, the daemon with the packages that the image has, for this system's Python.
set -eu
wheel=$(realpath "$1") target=$(realpath "$2") here=$(dirname "$(realpath "$0")")
shift 2
python=${PYTHON:-/usr/bin/python3}
version=$(basename "$wheel" | cut -d- -f2)
minor=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
next=$("$python" -c 'import sys; print("%d.%d" % (sys.version_info[0], sys.version_info[1] + 1))')
architecture=$(dpkg --print-architecture)
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"
umask 022

"$python" -m venv --without-pip "$root/opt/trackside"
pip() { # PIP is a command with arguments
  ${PIP:-pip} --python "$root/opt/trackside/bin/python" install --quiet --no-compile "$@"
}
pip "$@" --require-hashes --requirement "$here/../requirements.txt"
pip --no-deps --no-index "$wheel"
grep -rlI "$root" "$root/opt/trackside/bin" "$root/opt/trackside/pyvenv.cfg" | xargs sed -i "s|$root||g"
rm -f "$root"/opt/trackside/lib/python*/site-packages/trackside-*.dist-info/direct_url.json  # it has the path of the wheel

units=$root/opt/trackside/share/trackside/systemd
install -D -m 644 "$units/trackside.service" "$root/usr/lib/systemd/system/trackside.service"
install -D -m 644 "$units/trackside.sysusers" "$root/usr/lib/sysusers.d/trackside.conf"
install -D -m 644 "$units/trackside.tmpfiles" "$root/usr/lib/tmpfiles.d/trackside.conf"
install -d "$root/usr/bin" "$root/etc/default" "$root/DEBIAN"
ln -s /opt/trackside/bin/trackside "$root/usr/bin/trackside"
echo '#TRACKSIDE_OPTIONS="--config.file=/etc/trackside/trackside.yml"' > "$root/etc/default/trackside"

echo /etc/default/trackside > "$root/DEBIAN/conffiles"
install -m 755 "$here/preinst" "$here/postinst" "$here/prerm" "$here/postrm" "$root/DEBIAN"
cat > "$root/DEBIAN/control" <<CONTROL
Package: trackside
Version: $version
Architecture: $architecture
Maintainer: trackside
Depends: python3 (>= $minor), python3 (<< $next), systemd (>= 245)
Section: net
Priority: optional
Installed-Size: $(du -sk "$root" | cut -f1)
Description: monitor of machine-learning trainings, their GPUs and hosts
 A daemon for Prometheus, with a history, alerts and a dashboard.
CONTROL
dpkg-deb --root-owner-group -Zxz --build "$root" "$target/trackside_${version}_$architecture.deb" >/dev/null
echo "$target/trackside_${version}_$architecture.deb"
