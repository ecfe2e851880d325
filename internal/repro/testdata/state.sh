#!/bin/bash
# a title
#   in two lines
#
# Fingerprint: state/route
# Kernel:      7.3.4 (linux-image-7.3.4 7.3.4-1~bpo13+1)
# Found by:    nlfuzz run --kernel debian:7.3 --seed 5
# Seen then:
#   d0 is held
#   by $(something) `else`
#
# Run as root. Needs iproute2, util-linux and a kernel with the devices below. Works in a network namespace of its own.
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

	step ip route add blackhole 192.0.2.0/24
}

# After this the tables must be right.
fault() {
	ip route add blackhole 192.0.2.0/25
}

# What holds references, as far as is known: it is let go of at the end, and before the fault with --control.
release() {
	:
}

# wrong says what is wrong with the tables.
wrong() {
	local found=1
	shows ip -4 -N -o route show table 254 type blackhole exact 192.0.2.0/25 --has  --not metric src nhid via onlink dead linkdown nexthop || { found=0; echo 'missing: route blackhole 192.0.2.0/25 table 254 metric 0 proto 3 scope 0'; }
	shows ip -4 -N -o route show table 254 type blackhole exact 192.0.2.0/24 --has  --not metric src nhid via onlink dead linkdown nexthop && { found=0; echo 'unexpected: route blackhole 192.0.2.0/24 table 254 metric 0 proto 3 scope 0'; }
	return $found
}

judge() {
	local began
	sequence
	step ip route add blackhole 192.0.2.0/25
	echo 'not checked, since ip does not show it so: gadget 1'
	clock
	began=$now
	while wrong >"$tmp/wrong"; do
		clock
		if ((now - began > limit * 100)); then
			echo '  ip -4 -N -o route show table 254 type blackhole exact 192.0.2.0/25'
			ip -4 -N -o route show table 254 type blackhole exact 192.0.2.0/25 2>&1 | indent
			echo '  ip -4 -N -o route show table 254 type blackhole exact 192.0.2.0/24'
			ip -4 -N -o route show table 254 type blackhole exact 192.0.2.0/24 2>&1 | indent
			cat "$tmp/wrong"
			fail "the tables are still wrong after $(since "$began")"
		fi
		sleep 0.2
	done
	pass "the tables are right"
}

# The rest is the same in every script.

limit=3 # seconds
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
	for tool in ip unshare nsenter dmesg; do
		type -P "$tool" >/dev/null || skip "needs $tool"
	done
	[[ -z $control ]] || skip "no control: nothing is known to hold references in this sequence"
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
	namespace
	ns=$made
	echo "kernel $(uname -r), in a new network namespace (a look inside: nsenter -t $ns -n):"
	judge
}

main "$@"
