package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/registry"
	"github.com/coppice-dev/coppice/internal/tty"
)

// registryFlags are the flags for layers that are in a registry.
type registryFlags struct {
	name  string
	plain bool
}

func (r *registryFlags) add(cmd *cobra.Command, what string) {
	cmd.Flags().StringVar(&r.name, "registry", "", what)
	cmd.Flags().BoolVar(&r.plain, "plain-http", false,
		"allow plain HTTP to the registry")
}

// named is a repository in a registry that the user named, with permission for an unencrypted connection.
type named struct {
	registry.Reference
	plain bool
}

// repository returns the named repository, or nil if the flags name none.
func (r *registryFlags) repository(a *app, layers bool) (*named, error) {
	if r.name == "" && !r.plain {
		return nil, nil
	}
	if r.name == "" || !layers {
		return nil, fault.New(fault.Invalid, "--registry requires --with-layers").
			WithHint("use both: --with-layers --registry REGISTRY/REPOSITORY")
	}
	ref, err := registry.Parse(r.name)
	if err != nil {
		return nil, err
	}
	return &named{ref, r.plain || ref.Local()}, nil
}

// open opens the repository, with the user's credentials.
func (a *app) open(n *named) (*registry.Repository, error) {
	return registry.Open(n.Reference,
		registry.Options{PlainHTTP: n.plain, Credentials: registry.UserCredentials(a.getenv)})
}

// artifactPush pushes the layers of a sandbox to a registry. References in git are only set after that, so an
// interrupted push leaves unreferenced blobs.
type artifactPush struct {
	*app
	c       *client.Client
	to      *named
	sandbox string
	most    int64 // bytes; 0 selects the default
	bytes   int64 // of all layers
}

// push pushes the layers and their manifest, and returns where they are.
func (p *artifactPush) push(ctx context.Context) (*wire.Artifact, error) {
	repo, err := p.open(p.to)
	if err != nil {
		return nil, err
	}
	list, err := p.c.PackInfo(ctx, p.sandbox)
	if err != nil {
		return nil, err
	}
	if p.most <= 0 {
		p.most = wire.DefaultArtifact
	}
	var layers []registry.Layer
	out := &wire.Artifact{Repository: p.to.Name(), Layers: []wire.LayerBlob{}}
	for _, l := range list.Layers {
		if err := p.layer(ctx, repo, &l); err != nil {
			return nil, err
		}
		layers = append(layers, registry.Layer{Blob: registry.Blob{Digest: l.Digest, Size: l.Size}, DiffID: l.Layer})
		out.Layers = append(out.Layers, l)
	}
	m, err := registry.NewManifest(layers)
	if err != nil {
		return nil, err
	}
	out.Digest = m.Blob().Digest
	tag := p.to.Tag
	if tag == "" { // a unique tag, so that blobs of an older proposal are kept
		tag = "coppice-" + out.Digest[len("sha256:"):][:16]
	}
	return out, repo.PutManifest(ctx, m, tag)
}

// layer pushes a layer unless the registry has it, and fills in its blob.
func (p *artifactPush) layer(ctx context.Context, repo *registry.Repository, l *wire.LayerBlob) error {
	if l.Digest != "" {
		if has, err := repo.Has(ctx, registry.Blob{Digest: l.Digest, Size: l.Size}); has || err != nil {
			return errors.Join(err, p.count(l.Size))
		}
	}
	f, err := os.CreateTemp("", "coppice-layer-")
	if err != nil {
		return fault.Wrap(err, "write a packed layer")
	}
	defer f.Close()
	if err := os.Remove(f.Name()); err != nil { // the kernel frees it when this process exits, even if it is killed
		return fault.Wrap(err, "write a packed layer")
	}
	sum := sha256.New()
	w := &atMost{w: io.MultiWriter(f, sum), left: p.most - p.bytes}
	if err := p.c.PackLayer(ctx, wire.PackRequest{Name: p.sandbox, Layer: l.Layer}, w); err != nil {
		if errors.Is(err, errTooMuch) {
			err = errTooMuch
		}
		return err
	}
	l.Digest, l.Size = "sha256:"+hex.EncodeToString(sum.Sum(nil)), w.n
	if err := p.count(l.Size); err != nil {
		return err
	}
	_, err = repo.Put(ctx, registry.Blob{Digest: l.Digest, Size: l.Size}, f)
	return err
}

// errTooMuch means that the layers exceed the limit.
var errTooMuch = fault.New(fault.NoSpace, "packed layers exceed the limit of the registry").
	WithHint("remove unneeded files from the sandbox, or raise the limit: --max-layers BYTES")

func (p *artifactPush) count(size int64) error {
	if p.bytes += size; p.bytes > p.most {
		return errTooMuch
	}
	return nil
}

// atMost counts the bytes written, and fails a Write that would exceed the limit.
type atMost struct {
	w       io.Writer
	left, n int64
}

func (a *atMost) Write(p []byte) (int, error) {
	if int64(len(p)) > a.left {
		return 0, errTooMuch
	}
	n, err := a.w.Write(p)
	a.left, a.n = a.left-int64(n), a.n+int64(n)
	return n, err
}

// artifactPull gets the layers of a proposal from a registry. Their location is a claim of the proposer, so the
// connection is encrypted unless the user names the registry.
type artifactPull struct {
	*app
	c        *client.Client
	from     *named // nil: the registry that the proposal names
	artifact *wire.Artifact
}

// pull creates a sandbox from the layers.
func (p *artifactPull) pull(ctx context.Context, req wire.ReceiveRequest) (*wire.Sandbox, error) {
	from := p.from
	if from == nil {
		ref, err := registry.Parse(p.artifact.Repository)
		if err != nil {
			return nil, err
		}
		from = &named{Reference: ref}
		if ref.Local() {
			return nil, fault.New(fault.Denied,
				"layers of the proposal are in %s, a registry on the author's machine", tty.Clean(ref.Name())).
				WithHint("if it is reachable from here: --registry %s", tty.Clean(ref.Name()))
		}
	}
	repo, err := p.open(from)
	if err != nil {
		return nil, err
	}
	var size int64
	for _, l := range p.artifact.Layers {
		size += l.Size
	}
	p.note("fetching %d layers (%s) from %s", len(p.artifact.Layers), tty.Bytes(size), tty.Clean(from.Name()))
	r, w := io.Pipe()
	var g errgroup.Group
	g.Go(func() error {
		defer w.Close() // even if it is incomplete: the daemon then drops the layers and answers
		return p.get(ctx, repo, w)
	})
	made, err := p.c.UnpackLayers(ctx, req.Travelled, req.As, r)
	r.CloseWithError(errTaken)
	if got := g.Wait(); got != nil && !errors.Is(got, errTaken) { // that is why the daemon received only a part
		return nil, got
	}
	if err != nil {
		return nil, err
	}
	return &made, nil
}

// errTaken means that the daemon reads no more layers.
var errTaken = errors.New("the daemon stopped accepting layers")

// get writes all layers, concatenated. The daemon never receives the last byte of a layer that was not verified.
func (p *artifactPull) get(ctx context.Context, repo *registry.Repository, w io.Writer) error {
	h := &heldBack{w: w}
	for _, l := range p.artifact.Layers {
		if err := repo.Get(ctx, registry.Blob{Digest: l.Digest, Size: l.Size}, h); err != nil {
			return err
		}
	}
	return h.release()
}

// heldBack delays the last byte until more bytes follow, or release is called.
type heldBack struct {
	w    io.Writer
	last []byte
}

func (h *heldBack) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if err := h.release(); err != nil {
		return 0, err
	}
	n, err := h.w.Write(p[:len(p)-1])
	if err != nil {
		return n, err
	}
	h.last = append(h.last[:0], p[len(p)-1])
	return len(p), nil
}

func (h *heldBack) release() error {
	if len(h.last) == 0 {
		return nil
	}
	_, err := h.w.Write(h.last)
	h.last = h.last[:0]
	return err
}
