//go:build linux && (amd64 || arm64)

package notify

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// run drops what the sandbox has closed, until ctx is done.
func (k *kept) run(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			k.close()
			return
		case <-tick.C:
			k.settleSessions()
			k.sweep(mostMissed, hiddenPatience)
		}
	}
}

// settle drops the socket of a port if the sandbox has closed it.
func (k *kept) settle(port uint16) {
	k.mu.Lock()
	gone := false
	for inode, one := range k.all {
		if one.port == port && one.look(inode) == lost {
			gone = true
		}
	}
	k.mu.Unlock()
	if gone {
		k.sweep(1, hiddenPatience)
	}
}

const (
	// searchShare bounds the part of the time that searches take, to a twentieth, unless they take longer than
	// longestPause is for.
	searchShare  = 20
	longestPause = time.Second
	// hiddenPatience is how long a socket is kept whose process does not show its descriptors (PR_SET_DUMPABLE in
	// prctl(2)), so that nothing tells whether it was closed.
	hiddenPatience = time.Minute
)

// sweep drops the sockets that the sandbox has closed. Most are where they were before. Only if one is not, all
// descriptors of the sandbox's processes are looked at, and what is missed as often as most is dropped. It waits while
// a search would take too much of the time. Sockets that have been hidden for as long as patience are dropped too.
func (k *kept) sweep(most int, patience time.Duration) {
	k.searching.Lock()
	defer k.searching.Unlock()
	missing := k.missing(patience)
	if len(missing) == 0 {
		return
	}
	time.Sleep(time.Until(k.next))
	began := time.Now()
	found, err := k.search(missing)
	k.next = time.Now().Add(min(searchShare*time.Since(began), longestPause))
	if err != nil {
		return // nothing is known
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for inode := range missing {
		one, ok := k.all[inode]
		if !ok {
			continue
		}
		if at, ok := found[inode]; ok {
			one.tid, one.number, one.missed = at.tid, at.number, 0
			continue
		}
		if one.look(inode) != lost { // it moved during the search
			continue
		}
		if one.missed++; one.missed >= most || one.missed >= flowMissed && one.inSession() {
			k.lose(inode, one)
		}
	}
}

// lose gives up the duplicate of a socket. A session ends with the last descriptor of its socket, wherever that is.
func (k *kept) lose(inode uint64, one *keeping) {
	if !one.inSession() {
		k.forget(inode, one)
		return
	}
	k.change(one, func() {
		unix.Close(one.fd)
		one.fd = -1
	})
}

func (one *keeping) inSession() bool { return one.flow != nil && one.flow.inSession() }

// missing returns the inodes of the sockets that are not where they were last. It loses those that have been hidden
// for as long as patience.
func (k *kept) missing(patience time.Duration) map[uint64]bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	missing := map[uint64]bool{}
	for inode, one := range k.all {
		if one.fd < 0 {
			continue
		}
		switch one.look(inode) {
		case there:
			one.hidden = time.Time{}
		case lost:
			missing[inode] = true
		case hidden:
			if one.hidden.IsZero() {
				one.hidden = time.Now()
			}
			if time.Since(one.hidden) >= patience {
				k.lose(inode, one)
			}
		}
	}
	return missing
}

// sighting is what can be seen of a socket where it was last.
type sighting int

const (
	there  sighting = iota // or about to be there
	lost                   // it is not there
	hidden                 // its process does not show its descriptors
)

// look looks for the socket where it was last.
func (one *keeping) look(inode uint64) sighting {
	if one.number == lending {
		return there
	}
	at, err := socketAt(one.tid, one.number)
	switch {
	case err == nil && at == inode:
		return there
	case errors.Is(err, unix.EACCES):
		return hidden
	}
	return lost
}

// holder is a process that has a socket, and its number there.
type holder struct {
	tid    int
	number int32
}

// search returns holders of the wanted sockets, as far as processes of the sandbox have them.
func (k *kept) search(wanted map[uint64]bool) (map[uint64]holder, error) {
	pids, err := k.processes()
	if err != nil {
		return nil, err
	}
	found := map[uint64]holder{}
	for _, pid := range pids {
		dir := procPath(pid, "fd")
		for _, name := range namesIn(dir) {
			number, err := strconv.ParseInt(name, 10, 32)
			if err != nil {
				continue
			}
			if inode, err := socketLink(dir + "/" + name); err == nil && wanted[inode] {
				found[inode] = holder{pid, int32(number)}
			}
		}
	}
	return found, nil
}

// socketAt returns the inode of the socket that a thread has as number; 0 if that is not a socket.
func socketAt(tid int, number int32) (inode uint64, err error) {
	return socketLink(procPath(tid, "fd/"+strconv.Itoa(int(number))))
}

// socketLink is socketAt with a path in /proc.
func socketLink(path string) (inode uint64, err error) {
	var link [64]byte
	n, err := unix.Readlink(path, link[:])
	if err != nil {
		return 0, err
	}
	text, ok := strings.CutPrefix(string(link[:n]), "socket:[")
	if !ok {
		return 0, nil
	}
	inode, err = strconv.ParseUint(strings.TrimSuffix(text, "]"), 10, 64)
	return inode, err
}

// namesIn returns the names in a directory of /proc; none if it cannot be read, for example since its process has
// exited.
func namesIn(path string) []string {
	dir, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	return names
}
