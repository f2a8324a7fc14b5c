package layer

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// chunk is how many files of one directory one worker writes at a time.
const chunk = 64

// maxPaths is how many changed paths Captured names.
const maxPaths = 8

// emitter writes the directories that a walk chose into a layer.
type emitter struct {
	putter
	ctx    context.Context
	origin uint16
	spare  atomic.Int32
	paths  atomic.Int64
	bytes  atomic.Int64

	rootDone bool // the layer's root was written or marked; emitting starts on one goroutine

	tellMu sync.Mutex
	told   []string // guarded by tellMu
}

// dir writes d from the open src into the open, empty dst. It owns both and
// gives them back, perhaps as other descriptors.
func (e *emitter) dir(d *delta, src, dst, depth int, path string) (int, int, error) {
	if err := e.ctx.Err(); err != nil {
		return src, dst, err
	}
	e.count(d, path)
	if err := e.files(d, src, dst, path); err != nil {
		return src, dst, err
	}
	for _, name := range d.gone {
		if err := e.whiteout(dst, name); err != nil {
			return src, dst, fault.Wrap(err, "record removal of %q", path+"/"+name)
		}
		e.paths.Add(1)
		e.tell(path, name)
	}
	src, dst, err := e.kids(d, src, dst, depth, path)
	if err != nil {
		return src, dst, err
	}
	if err := e.dirMeta(src, dst, d.opaque); err != nil {
		return src, dst, fault.Wrap(err, "copy directory %q", path+"/")
	}
	return src, dst, nil
}

// count adds the directory itself to the statistics.
func (e *emitter) count(d *delta, path string) {
	if d.counts() {
		e.paths.Add(1)
		e.tell(path, "")
	}
}

func (e *emitter) files(d *delta, src, dst int, path string) error {
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		first error
	)
	work := func(items []item) {
		for i := range items {
			if err := e.item(&items[i], src, dst, path); err != nil {
				mu.Lock()
				if first == nil {
					first = err
				}
				mu.Unlock()
				return
			}
		}
	}
	for items := d.items; len(items) > 0; {
		n := min(chunk, len(items))
		part := items[:n]
		items = items[n:]
		if len(items) > 0 && e.take() {
			wg.Go(func() {
				work(part)
				e.spare.Add(1)
			})
			continue
		}
		work(part)
		mu.Lock()
		stop := first != nil
		mu.Unlock()
		if stop {
			break
		}
	}
	wg.Wait()
	return first
}

func (e *emitter) take() bool {
	for n := e.spare.Load(); n > 0; n = e.spare.Load() {
		if e.spare.CompareAndSwap(n, n-1) {
			return true
		}
	}
	return false
}

func (e *emitter) item(it *item, src, dst int, path string) error {
	var st unix.Stat_t
	it.ent.toStat(&st)
	if !it.ent.isReg() || it.ent.nlink > 1 {
		if err := lstatAt(src, it.name, &st); err != nil {
			return fault.Wrap(err, "read %q", path+"/"+it.name)
		}
	}
	if err := e.put(src, it.name, dst, it.name, &st); err != nil {
		return fault.Wrap(err, "copy %q", path+"/"+it.name)
	}
	it.ent.origin = e.origin
	e.paths.Add(1)
	if st.Mode&unix.S_IFMT == unix.S_IFREG {
		e.bytes.Add(st.Size)
	}
	e.tell(path, it.name)
	return nil
}

// toStat is enough of a stat for put.
func (e *ent) toStat(st *unix.Stat_t) {
	st.Mode, st.Uid, st.Gid, st.Ino = e.mode, e.uid, e.gid, e.ino
	setCount(&st.Nlink, e.nlink)
}

// setCount sets a link count, which is 32 bits wide on arm64 and 64 on amd64.
func setCount[T uint32 | uint64](to *T, n uint32) { *to = T(n) }

func (e *emitter) kids(d *delta, src, dst, depth int, path string) (int, int, error) {
	deep := depth >= maxHeld
	var ss, ds unix.Stat_t
	if deep {
		if err := errors.Join(unix.Fstat(src, &ss), unix.Fstat(dst, &ds)); err != nil {
			return src, dst, err
		}
	}
	for _, k := range d.kids {
		if err := e.s.fs.Mkdir(dst, k.name, 0o700); err != nil {
			return src, dst, fault.Wrap(err, "copy directory %q", path+"/"+k.name)
		}
		cd, err := openDirAt(dst, k.name)
		if err != nil {
			return src, dst, err
		}
		cs, err := openDirAt(src, k.name)
		if err != nil {
			unix.Close(cd)
			return src, dst, fault.Wrap(err, "open directory %q", path+"/"+k.name)
		}
		if deep {
			unix.Close(src)
			unix.Close(dst)
			src, dst = -1, -1
		}
		cs, cd, err = e.dir(k, cs, cd, depth+1, path+"/"+k.name)
		if deep && cs >= 0 && cd >= 0 {
			var e1, e2 error
			src, e1 = comeBack(cs, ss.Ino, ss.Dev)
			dst, e2 = comeBack(cd, ds.Ino, ds.Dev)
			err = errors.Join(err, e1, e2)
		}
		closeAll(cs, cd)
		if err != nil {
			return src, dst, err
		}
	}
	return src, dst, nil
}

// tell remembers a changed path for messages, when it is among the first.
func (e *emitter) tell(path, name string) {
	e.tellMu.Lock()
	defer e.tellMu.Unlock()
	if len(e.told) >= maxPaths {
		return
	}
	full := path + "/" + name
	if name == "" && path != "" {
		full = path
	}
	e.told = append(e.told, strings.Clone(full))
}

func closeAll(fds ...int) {
	for _, fd := range fds {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}
