#!/bin/bash
# a title
#   in two lines
#
# Fingerprint: blocked/dummy/ipv6 dst (from->nexthop)
# Kernel:      7.3.4 (linux-image-7.3.4 7.3.4-1~bpo13+1)
# Found by:    nlfuzz run --kernel debian:7.3 --seed 5
# Seen then:
#   d0 is held
#   by $(something) `else`
#
# Run as root. Needs iproute2, util-linux, python3 and a kernel with the devices below. Works in a network namespace of its own.
# Exit code: 0 the fault is not there, 1 it is, 4 skipped (the reason is printed). More with --help.

# The way to the fault.
sequence() {
	local conf
	for conf in all default lo; do
		step setting net.ipv6.conf.$conf.accept_dad 0
		step setting net.ipv6.conf.$conf.router_solicitations 0
	done
	step setting net.ipv6.conf.all.addr_gen_mode 1
	step setting net.ipv6.conf.default.addr_gen_mode 1

	step ip link set dev lo up
	step ip link add name d0 type dummy
	step ip link set dev d0 up
	step ip addr add 10.0.0.1/24 dev d0
	step ip addr add 2001:db8::1/64 dev d0
	step tc qdisc add dev lo root netem delay 274s # 1000s then, but tc takes no more
	step hold udp4 s0 to 224.0.0.1 dev d0
	step send raw6 from 2001:db8::1 to 2001:db8::1 count 10
	fails EEXIST ip link add name d0 type dummy
}

# This must return: nothing may keep d0.
fault() {
	ip link del dev d0
}

# What holds references, as far as is known: it is let go of at the end, and before the fault with --control.
release() {
	try tc qdisc del dev lo root
	try close_sockets
}

judge() {
	local began
	sequence
	if [[ -n $control ]]; then
		echo "control: what holds references is let go of first"
		release
	fi
	echo '  ip link del dev d0'
	clock
	began=$now
	spawn fault
	victim=$pid
	if finished "$victim" "$limit"; then
		wait "$victim" || skip "it failed, which nlfuzz did not see: $(<"$tmp/said")"
		pass "it returned after $(since "$began")"
	fi
	echo "FAIL: it has not returned after $(since "$began")"
	echo "kernel log:"
	klog | grep -F 'unregister_netdevice: waiting for' | tail -n 3 | indent
	echo "process $victim waits in $(cat "/proc/$victim/wchan" 2>/dev/null):"
	{ indent <"/proc/$victim/stack"; } 2>/dev/null
	echo "letting go of what holds references:"
	clock
	began=$now
	release
	if finished "$victim" 30; then
		echo "it returned $(since "$began") after that"
	else
		echo "it has not returned $(since "$began") after that: something else holds the device"
	fi
	exit 1
}

# The rest is the same in every script.

limit=5 # seconds
control=  # set by --control
ns=       # process that keeps the network namespace
watch=    # another one
extra=    # another one
listener= # process that hears announcements
pid=      # process of the last command
victim=   # process that may be blocked
run=      # "exec" in a process of its own
timeout=  # old value of the sysctl
mark="repro.sh $$ $RANDOM"
missing='not supported|unknown device type|no such file|qdisc kind is unknown|unknown qdisc|protocol not available|module'
declare -A sockets

pass() { echo "PASS: $*"; exit 0; }
fail() { echo "FAIL: $*"; exit 1; }
skip() { echo "SKIP: $*"; exit 4; }

usage() {
	cat <<-EOF
	usage: $0 [--limit SECONDS] [--control]
	  --limit SECONDS  how long to wait before it counts as a fault, or as none ($limit)
	  --control        let go of what holds references first: then there must be no fault
	Exit code: 0 the fault is not there, 1 it is, 2 wrong usage, 4 skipped.
	EOF
}

# clock sets $now to hundredths of seconds; since prints the time from such a value to now.
clock() { local up; read -r up _ </proc/uptime; now=$((10#${up/./})); }
since() { clock; printf '%d.%02d s' $(((now - $1) / 100)) $(((now - $1) % 100)); }

indent() { local line; while IFS= read -r line; do echo "    $line"; done; }
said() { grep -qiE -- "$1" "$tmp/said"; }
klog() { dmesg 2>/dev/null | grep -A 100000 -F -- "$mark"; }

running() { local stat; { read -r stat <"/proc/$1/stat"; } 2>/dev/null && [[ $stat != *") Z "* ]]; }

# finished PID SECONDS waits for the end of a process. timeout(1) would not do: a blocked netlink request takes no signals.
finished() {
	local from
	clock
	from=$now
	while running "$1"; do
		clock
		((now - from < $2 * 100)) || return 1
		sleep 0.02
	done
}

# enter runs a program in the namespace.
enter() { $run nsenter --net="/proc/$ns/ns/net" -- "$@"; }
ip() { enter ip "$@"; }
tc() { enter tc "$@"; }
setting() { enter bash -c 'echo "$2" >"/proc/sys/$1"' setting "${1//.//}" "$2"; }
settle() { sleep 1; } # for RCU callbacks and the link watch

# spawn starts a command in the background, as process $pid.
spawn() {
	(run=exec; "$@") >"$tmp/said" 2>&1 </dev/null &
	pid=$!
}

# answer runs a command to its end and returns its exit code.
answer() {
	case $1 in
	hold | close_socket | close_sockets) "$@" >"$tmp/said" 2>&1; return ;;
	esac
	spawn "$@"
	finished "$pid" 60 || { victim=$pid; skip "it has not returned after 60 s, which nlfuzz did not see: $*"; }
	wait "$pid"
}

# step runs a command that must succeed.
step() {
	echo "  $*"
	answer "$@" && return
	if said "$missing"; then
		skip "this machine lacks what this step needs: $*: $(<"$tmp/said")"
	fi
	skip "set-up step failed, which nlfuzz saw succeed: $*: $(<"$tmp/said")"
}

# fails runs a command that must be refused, since nlfuzz saw it refused: fails ERRNO COMMAND...
fails() {
	echo "  ${*:2}    # $1"
	answer "${@:2}" && skip "set-up step succeeded, which nlfuzz saw fail with $1: ${*:2}"
}

# either runs a command that may be refused or not.
either() { echo "  $*"; answer "$@" || indent <"$tmp/said"; }

try() { echo "  $*"; answer "$@"; }

# shows COMMAND... --has WORDS... --not WORDS...: the command prints a line that has all of the first words and none of the second.
shows() {
	local cmd=() has=() not=() to=cmd w line
	for w; do
		case $w in
		--has) to=has ;;
		--not) to=not ;;
		*) case $to in cmd) cmd+=("$w") ;; has) has+=("$w") ;; not) not+=("$w") ;; esac ;;
		esac
	done
	answer "${cmd[@]}"
	while read -r line; do
		[[ $line == *'<'*'>'* ]] && line=${line//[<>,]/ }
		read -ra w <<<"${line//\\/ }"
		line=" ${w[*]} "
		for w in "${has[@]}"; do [[ $line == *" $w "* ]] || continue 2; done
		for w in "${not[@]}"; do [[ $line == *" $w "* ]] && continue 2; done
		return 0
	done <"$tmp/said"
	return 1
}

send() { enter python3 "$tmp/helper.py" send "$@"; }
ptb() { enter python3 "$tmp/helper.py" ptb "$@"; }
connect() { enter python3 "$tmp/helper.py" connect "$@"; }

# hold PROTO NAME ... keeps a connected socket in a process of its own.
hold() {
	local name=$2 from
	[[ -z ${sockets[$name]} ]] || { echo "File exists"; return 1; }
	(run=exec; enter python3 "$tmp/helper.py" hold "$1" "${@:3}") >"$tmp/said" 2>&1 </dev/null &
	sockets[$name]=$!
	clock
	from=$now
	until grep -q '^ready$' "$tmp/said"; do
		clock
		if ! running "${sockets[$name]}" || ((now - from > 3000)); then
			close_socket "$name"
			return 1
		fi
		sleep 0.02
	done
}

# helper writes the program that makes the traffic.
helper() {
	cat >"$tmp/helper.py" <<-'EOF'
	import os, signal, socket, struct, sys
	verb, proto = sys.argv[1:3]  # for ptb an address instead of a protocol
	opts = dict(zip(sys.argv[3::2], sys.argv[4::2]))
	dev = opts.get("dev")
	v6 = ":" in proto if verb == "ptb" else proto != "udp4"
	family = socket.AF_INET6 if v6 else socket.AF_INET

	def address(host, port):
	    if not v6:
	        return (host, port)
	    b = socket.inet_pton(family, host)
	    local = b[0] == 0xFE and b[1] & 0xC0 == 0x80 or b[0] == 0xFF and b[1] & 0xF == 2
	    return (host, port, 0, socket.if_nametoindex(dev) if local and dev else 0)

	def checksum(b):
	    n = sum(struct.unpack("!%dH" % (len(b) // 2), b))
	    while n >> 16:
	        n = (n & 0xFFFF) + (n >> 16)
	    return struct.pack("!H", ~n & 0xFFFF)

	def packet(src, dst, icmp):
	    if v6:
	        check = checksum(src + dst + struct.pack("!II", len(icmp), 58) + icmp)
	        head = struct.pack("!IHBB", 6 << 28, len(icmp), 58, 64) + src + dst
	    else:
	        check = checksum(icmp)
	        head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(icmp), 0, 0, 64, 1, 0) + src + dst
	        head = head[:10] + checksum(head) + head[12:]
	    return head + icmp[:2] + check + icmp[4:]

	def ptb():
	    # An ICMP error from and to an own address, which quotes an echo reply from there: the kernel learns the path's MTU.
	    s = socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_RAW)
	    if v6:
	        s.setsockopt(socket.IPPROTO_IPV6, 36, 1)  # IPV6_HDRINCL
	    udp = socket.socket(family, socket.SOCK_DGRAM)
	    if dev:
	        for x in s, udp:
	            x.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, dev.encode() + b"\0")
	    if "from" not in opts:
	        udp.connect(address(proto, 9))
	        opts["from"] = udp.getsockname()[0]
	    src, dst = (socket.inet_pton(family, a) for a in (opts["from"], proto))
	    quoted = packet(src, dst, struct.pack("!BBHI", 129 if v6 else 0, 0, 0, 0))
	    kind, code = (2, 0) if v6 else (3, 4)
	    s.sendto(packet(src, src, struct.pack("!BBHI", kind, code, 0, int(opts["mtu"])) + quoted), address(opts["from"], 0))

	try:
	    if verb == "ptb":
	        ptb()
	        sys.exit()
	    if proto == "raw6":
	        s = socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_RAW)
	        s.setsockopt(socket.IPPROTO_IPV6, 36, 1)  # IPV6_HDRINCL
	        # version 6, no payload, next header 59 is "no next header", hop limit 64
	        data = struct.pack("!IHBB", 6 << 28, 0, 59, 64)
	        data += socket.inet_pton(family, opts.get("from", "::")) + socket.inet_pton(family, opts["to"])
	        port = 0
	    else:
	        s = socket.socket(family, socket.SOCK_DGRAM)
	        data, port = b"nlfuzz", 9
	        if not v6:
	            s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
	    s.setblocking(False)
	    if dev:
	        s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, dev.encode() + b"\0")
	    if "from" in opts and proto != "raw6":
	        s.bind(address(opts["from"], 0))
	    if verb == "send":
	        for _ in range(int(opts.get("count", 1))):
	            s.sendto(data, address(opts["to"], port))
	    else:
	        s.connect(address(opts["to"], port))
	except OSError as e:
	    sys.exit(os.strerror(e.errno) if e.errno else str(e))
	if verb == "hold":
	    print("ready", flush=True)
	    signal.alarm(3600)
	    signal.pause()
	EOF
}

close_socket() {
	local p=${sockets[$1]}
	unset "sockets[$1]"
	[[ -n $p ]] || { echo "No such file or directory"; return 1; }
	kill "$p" 2>/dev/null
	finished "$p" 5
}

close_sockets() { local s; for s in "${!sockets[@]}"; do close_socket "$s"; done; }

# namespace starts process $made in a new network namespace. It has no name, so nothing of it can be left behind.
namespace() {
	local from
	unshare --net sleep 3600 </dev/null >"$tmp/said" 2>&1 &
	made=$!
	clock
	from=$now
	while [[ $(readlink "/proc/$made/ns/net") == "$(readlink /proc/$$/ns/net)" ]] && running "$made" && ((now - from < 500)); do
		sleep 0.02
		clock
	done
	running "$made" || skip "no network namespace: $(<"$tmp/said")"
}

cleanup() {
	trap '' INT TERM HUP
	local p
	if [[ -n $ns ]]; then
		(release) >/dev/null 2>&1
		if [[ -n $victim ]] && ! finished "$victim" 10; then
			echo "process $victim is still blocked in the kernel: nothing but a reboot ends it"
		fi
	fi
	close_sockets
	for p in $ns $watch $extra $listener; do
		kill "$p" 2>/dev/null
	done
	[[ -n $timeout ]] && echo "$timeout" >/proc/sys/net/core/netdev_unregister_timeout_secs
	rm -rf "$tmp"
}

main() {
	local tool sysctl=/proc/sys/net/core/netdev_unregister_timeout_secs
	while (($#)); do
		case $1 in
		--limit) [[ $2 =~ ^[1-9][0-9]{0,5}$ ]] || { usage >&2; exit 2; }; limit=$2; shift 2 ;;
		--control) control=1; shift ;;
		--help | -h) usage; exit 0 ;;
		*) usage >&2; exit 2 ;;
		esac
	done
	((EUID == 0)) || skip "needs root"
	for tool in ip tc unshare nsenter dmesg python3; do
		type -P "$tool" >/dev/null || skip "needs $tool"
	done
	tmp=$(mktemp -d) || skip "no folder for temporary files"
	trap cleanup EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM HUP
	{ echo "$mark" >/dev/kmsg; } 2>/dev/null
	# The kernel says sooner what it waits for. Not touched if it is 1 already, perhaps by another script that will put it back.
	if [[ -r $sysctl && $(<$sysctl) != 1 ]]; then
		timeout=$(<$sysctl)
		{ echo 1 >$sysctl; } 2>/dev/null || timeout=
	fi
	helper
	namespace
	ns=$made
	echo "kernel $(uname -r), in a new network namespace (a look inside: nsenter -t $ns -n):"
	judge
}

main "$@"
