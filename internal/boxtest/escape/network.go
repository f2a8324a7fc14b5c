//go:build linux && (amd64 || arm64)

package escape

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

var networkAttacks = []Attack{
	{Name: "netlink", Refused: []string{"socket"},
		What: "make a netlink socket of any protocol but ROUTE, and change a route by that", Run: func(f Facts) error {
			var protocols []int
			for n := 1; n < 32; n++ {
				protocols = append(protocols, n)
			}
			err := each(protocols, func(n int) error { _, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, n); return err })
			if err == nil {
				return nil
			}
			fd, serr := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE)
			if serr != nil {
				return errors.Join(err, serr)
			}
			// RTM_NEWLINK, NLM_F_REQUEST|NLM_F_ACK|NLM_F_CREATE, of a dummy interface.
			msg := []byte{52, 0, 0, 0, 16, 0, 5, 4, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
				20, 0, 18, 0, 9, 0, 1, 0, 'd', 'u', 'm', 'm', 'y', 0, 0, 0, 0, 0, 0, 0}
			if err := unix.Sendto(fd, msg, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
				return err
			}
			reply := make([]byte, 4096)
			n, _, rerr := unix.Recvfrom(fd, reply, 0)
			if rerr != nil || n < 20 {
				return errors.Join(errNothing, rerr)
			}
			if code := int32(reply[16]) | int32(reply[17])<<8 | int32(reply[18])<<16 | int32(reply[19])<<24; code != 0 {
				return unix.Errno(-code)
			}
			return nil
		}},
	{Name: "socket-families", Refused: []string{"socket"},
		What: "make a socket of every family but INET, INET6, UNIX and NETLINK", Run: func(f Facts) error {
			var families []int
			for n := range 64 {
				if n != unix.AF_UNIX && n != unix.AF_INET && n != unix.AF_INET6 && n != unix.AF_NETLINK {
					families = append(families, n)
				}
			}
			return each(families, func(n int) error {
				return each([]int{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_RAW, unix.SOCK_SEQPACKET, unix.SOCK_RDM},
					func(typ int) error {
						fd, err := unix.Socket(n, typ, 0)
						if err != nil {
							return err
						}
						return unix.Close(fd)
					})
			})
		}},
	{Name: "raw-sockets", Refused: []string{"socket"}, What: "send and hear raw packets", Run: func(f Facts) error {
		return each(
			[][3]int{{unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP}, {unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_RAW},
				{unix.AF_PACKET, unix.SOCK_RAW, 0x300},
				{unix.AF_INET, unix.SOCK_PACKET, 0x300}, {unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP},
				{unix.AF_INET, unix.SOCK_DCCP, 33}, {unix.AF_INET, unix.SOCK_DGRAM, 115}},
			func(s [3]int) error { _, err := unix.Socket(s[0], s[1], s[2]); return err })
	}},
	{Name: "vsock", Refused: []string{"socket"}, What: "reach the hypervisor", Run: func(f Facts) error {
		fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		return unix.Connect(fd, &unix.SockaddrVM{CID: unix.VMADDR_CID_HOST, Port: 1024})
	}},
	{Name: "unix-sockets", None: Files, What: "connect to sockets outside by their paths: the keeper's, the daemon's",
		Run: func(f Facts) error {
			return each(f.Sockets, func(p string) error { return connectUnix(p) })
		}},
	{Name: "found-sockets", None: Files, What: "connect to every socket file that can be seen", Run: func(f Facts) error {
		var paths []string
		for _, pattern := range []string{"/run/*", "/run/*/*", "/run/user/*/*", "/var/run/*", "/dev/*"} {
			found, _ := filepath.Glob(pattern)
			for _, p := range found {
				if st, err := os.Stat(p); err == nil && st.Mode()&os.ModeSocket != 0 {
					paths = append(paths, p)
				}
			}
		}
		if len(paths) == 0 {
			return errNothing
		}
		return each(paths, connectUnix)
	}},
	{Name: "abstract-socket", None: Kernel, What: "connect to an abstract socket of the host",
		Run: func(f Facts) error { return connectUnix("@" + f.Abstract) }},
	{Name: "every-abstract-socket", None: Kernel, What: "connect to every abstract socket that /proc/net/unix tells of",
		Run: func(f Facts) error {
			b, err := os.ReadFile("/proc/net/unix")
			if err != nil {
				return err
			}
			var names []string
			for line := range strings.Lines(string(b)) {
				if w := strings.Fields(line); len(w) == 8 && strings.HasPrefix(w[7], "@") {
					names = append(names, w[7])
				}
			}
			if len(names) == 0 {
				return errNothing
			}
			return each(names, connectUnix)
		}},
	{Name: "loopback", None: Kernel, What: "reach a port on the host's loopback", Applies: ownNet,
		Run: func(f Facts) error {
			return each([][4]byte{{127, 0, 0, 1}, {127, 0, 0, 53}, {10, 0, 2, 2}, {169, 254, 169, 254}, {1, 1, 1, 1}},
				func(a [4]byte) error {
					fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
					if err != nil {
						return err
					}
					defer unix.Close(fd)
					err = unix.Connect(fd, &unix.SockaddrInet4{Addr: a, Port: f.Port})
					if errors.Is(err, unix.EINPROGRESS) {
						time.Sleep(100 * time.Millisecond)
						code, gerr := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
						if _, perr := unix.Getpeername(fd); perr != nil {
							return fmt.Errorf("%w %w", unix.Errno(code), errors.Join(gerr, perr))
						}
						return nil
					}
					return err
				})
		}},
	{Name: "datagrams", None: Kernel, What: "send datagrams, MPTCP and TCP Fast Open out", Applies: netOff,
		Run: func(f Facts) error {
			to := &unix.SockaddrInet4{Addr: [4]byte{1, 1, 1, 1}, Port: 53}
			return any1(map[string]func() error{
				"udp": func() error {
					fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
					if err != nil {
						return err
					}
					return unix.Sendto(fd, []byte("x"), 0, to)
				},
				"mptcp": func() error {
					fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP)
					if err != nil {
						return err
					}
					return unix.Connect(fd, to)
				},
				"fastopen": func() error {
					fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
					if err != nil {
						return err
					}
					return unix.Sendto(fd, []byte("x"), 0x20000000, to)
				},
			})
		}},
	{Name: "interfaces", None: Nothing, What: "find an interface besides the loopback", Applies: netOff,
		Run: func(f Facts) error {
			b, err := os.ReadFile("/proc/net/dev")
			if err != nil {
				return err
			}
			for line := range strings.Lines(string(b)) {
				if name, _, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && name != "lo" {
					tell(os.Stdout, name)
					return nil
				}
			}
			return errNothing
		}},
}

// connectUnix connects to a path, or to the abstract name that follows "@".
func connectUnix(name string) error {
	return each([]int{unix.SOCK_STREAM, unix.SOCK_SEQPACKET, unix.SOCK_DGRAM}, func(typ int) error {
		fd, err := unix.Socket(unix.AF_UNIX, typ|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Connect(fd, &unix.SockaddrUnix{Name: name})
	})
}
