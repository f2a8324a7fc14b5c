# itself.sh TIER DRIVER...: see script/hostile-itself.txtar, which sets $OUT and $ROOTFS. Tier
# process has the host's network, whose resolvers it shows. The others have rules about requests,
# for which the gate's authority is mounted over the trust stores.
tier=$1
shift
case $tier in
process) net='--net host' ;;
*) net='--policy rules.yaml' ;;
esac
before=$(stat -c '%n %a %s %Y %Z' $OUT $OUT/*)

broken() { echo "BROKEN: $tier, $driver, $attack: $*"; cat said; }

# try ARGS... runs coppice, which must succeed or fail with a clear error.
try() {
	timeout 60 coppice "$@" >said 2>&1
	code=$?
	case $code in
	124 | 137) broken "coppice $* does not end" ;;
	esac
	if grep -q SECRET said; then broken "coppice $* shows a secret of the host"; fi
	if grep -q 'bug of coppice' said; then broken "coppice $* fails with an internal error"; fi
	return $code
}

# must ARGS... runs coppice, which must succeed.
must() { try "$@" || broken "coppice $* ends with $code"; }

# look NAME starts a sandbox, and looks for what it must not have.
look() {
	try exec $1 -- sh -c '
		for f in /etc/resolv.conf /run/coppice-ca/*; do if test -f $f; then head -c 100000 $f; fi; done
		if test -e '$OUT' || test -e /..'$OUT'; then echo the directory of the host is SECRET; fi'
}

itself() {
	must create $attack --driver $driver --tier $tier --from $ROOTFS --no-policy-files $net
	must snapshot tag $attack first
	must exec $attack -- sh -c "$1"
	must snapshot tag $attack hostile
	must stop $attack
	look $attack
	must fork $attack f-$attack
	look f-$attack
	must rm --force f-$attack
	must rewind $attack first
	must exec $attack -- test -e /etc/passwd
	must rewind $attack hostile
	look $attack
	must update $attack --idle-stop 100ms
	i=0
	until coppice status $attack | grep -Eq '^state *idle'; do i=$((i+1)); test $i -lt 300 || { broken "it is never idle"; break; }; sleep .1; done
	look $attack
	must stop $attack
	must serve --stop
	look $attack
	must update $attack --idle-stop 0
	must stop $attack
	must rewind $attack first
	must exec $attack -- cat /work/a
	must diff $attack hostile HEAD
	must rm --force $attack
}

for driver in "$@"; do
	attack=links
	itself "ln -s /var/run/precious /etc/resolv.conf; ln -s /..$OUT /var/run; mkdir -p /etc/ssl/certs; ln -s /..$OUT/secret /etc/ssl/certs/ca-certificates.crt; ln -s /..$OUT /opt"
	attack=new
	itself "ln -s /var/run/a/b /etc/resolv.conf; ln -s /..$OUT/empty /var/run; mkdir -p /etc/ssl; ln -s ../../../../../..$OUT /etc/ssl/certs; ln -s certs/secret /etc/ssl/cert.pem"
	attack=fifo
	itself "mkfifo /etc/resolv.conf; mkdir -p /etc/ssl/certs; mkfifo /etc/ssl/certs/ca-certificates.crt; rm /etc/group; mkfifo /etc/group"
	attack=zero
	itself "ln -s /dev/zero /etc/resolv.conf; mkdir -p /etc/ssl/certs; ln -s /dev/zero /etc/ssl/certs/ca-certificates.crt"
	attack=dirs
	itself "mkdir /etc/resolv.conf; mkdir -p /etc/ssl/certs/ca-certificates.crt; rm /etc/group; ln -s group /etc/group; dd if=/dev/zero of=/etc/ssl/cert.pem bs=1 count=1 seek=16M"
done
after=$(stat -c '%n %a %s %Y %Z' $OUT $OUT/*)
if test "$before" != "$after"; then echo "BROKEN: the host has $after"; fi
if test -n "$(ls -A $OUT/empty)"; then echo "BROKEN: files of the host were made"; fi
echo "all tried in $tier: $*"
