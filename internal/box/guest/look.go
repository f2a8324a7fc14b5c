//go:build linux && (amd64 || arm64)

package guest

import (
	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/box/procs"
	"github.com/coppice-dev/coppice/internal/fault"
)

// onlooker answers looks. serve never waits for it: there may be many processes, and reading the memory of some may
// block. Lists of processes, which require such reads, and ports have a goroutine each. The goroutines end with this
// process.
type onlooker struct {
	link *initlink.Link
	view *procs.View

	lists, ports chan initlink.Look
}

// maxLooks is the length of each of the two queues.
const maxLooks = 64

func (o *onlooker) start(d *daemon) {
	var net procs.Network
	if d.inet != nil {
		net = d.inet
	}
	*o = onlooker{
		link: d.link, view: procs.NewView(d.self, d.pid1 && d.guest.Loopback, d.pid1 && !d.ownProc, net),
		lists: make(chan initlink.Look, maxLooks), ports: make(chan initlink.Look, maxLooks),
	}
	go o.serveLists()
	go o.servePorts()
}

// look queues a Look, or answers it if it is a LookSignal.
func (d *daemon) look(m initlink.Message) error {
	defer m.Close()
	var l initlink.Look
	if err := m.Obey(&l); err != nil {
		_ = m.Decode(&l) // for the ID
		return d.link.Send(initlink.MsgSeen, initlink.Seen{ID: l.ID, Err: initlink.WireError(err)})
	}
	queue := d.onlooker.ports
	switch l.What {
	case initlink.LookSignal:
		if d.frozen { // the snapshot must not change
			d.waiting = append(d.waiting, m)
			return nil
		}
		return d.link.Send(initlink.MsgSeen, initlink.Seen{ID: l.ID, Err: initlink.WireError(d.onlooker.view.Signal(l))})
	case initlink.LookProcesses:
		queue = d.onlooker.lists
	case initlink.LookPorts, initlink.LookDial:
	default:
		return d.link.Send(initlink.MsgSeen,
			initlink.Seen{ID: l.ID, Err: initlink.WireError(initlink.Older("does not support the query %q", l.What))})
	}
	select {
	case queue <- l:
		return nil
	default:
		return d.link.Send(initlink.MsgSeen,
			initlink.Seen{ID: l.ID,
				Err: initlink.WireError(
					fault.New(fault.Conflict, "too many queries of the sandbox's processes at once: the limit is %d", maxLooks).
						WithHint("try again"))})
	}
}

// serveLists answers LookProcesses.
func (o *onlooker) serveLists() {
	for l := range o.lists {
		s, err := o.view.Processes()
		s.ID, s.Err = l.ID, initlink.WireError(err)
		_ = o.link.Send(initlink.MsgSeen, s) // on an error the keeper is gone, and init exits
	}
}

// servePorts answers LookPorts and LookDial.
func (o *onlooker) servePorts() {
	for l := range o.ports {
		if l.What == initlink.LookDial {
			o.answerDial(l)
			continue
		}
		s, err := o.view.Ports(l.Port)
		s.ID, s.Err = l.ID, initlink.WireError(err)
		_ = o.link.Send(initlink.MsgSeen, s) // on an error the keeper is gone, and init exits
	}
}

func (o *onlooker) answerDial(l initlink.Look) {
	fd, err := o.view.Dial(l.Port)
	s := initlink.Seen{ID: l.ID, Err: initlink.WireError(err), Shared: o.view.SharesNet()}
	if err != nil {
		_ = o.link.Send(initlink.MsgSeen, s) // on an error the keeper is gone, and init exits
		return
	}
	defer unix.Close(fd)
	if err := o.link.Send(initlink.MsgSeen, s, fd); initlink.NotPassed(err) {
		s.Err = initlink.WireError(fault.Wrap(err, "pass a connection to port %d", l.Port))
		_ = o.link.Send(initlink.MsgSeen, s) // on an error the keeper is gone, and init exits
	}
}
