//go:build linux

package cli_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/looptest"
)

// TestLongChain takes 2,000 consecutive snapshots with the real driver on the real host, and moves between them.
func TestLongChain(t *testing.T) {
	t.Parallel()
	n := 2000
	if looptest.Race || testing.Short() {
		n = 150
	}
	ctx := context.Background()
	d := newDoomed(t)
	if _, err := d.client.Create(ctx, wire.CreateRequest{Name: "box"}, nil); err != nil {
		t.Fatal(err)
	}
	// Every command increments the count, and every tenth creates a file.
	heads := make([]string, n+1)
	for i := 1; i <= n; i++ {
		script := fmt.Sprintf("mkdir -p /var/tmp/chain && cd /var/tmp/chain && echo %d > count", i)
		if i%10 == 0 {
			script += fmt.Sprintf(" && echo %d > tenth-%d && rm -f tenth-%d", i, i, i-100)
		}
		heads[i] = d.sh(ctx, "box", script).Head
	}
	if i := slices.Index(heads[1:], ""); i >= 0 || len(slices.Compact(slices.Sorted(slices.Values(heads)))) != n+1 {
		t.Fatal("not every command created a snapshot")
	}
	log, err := d.client.Log(ctx, "box")
	if err != nil || len(log.Nodes) < n+1 || log.Nodes[0].ID != heads[n] {
		t.Fatalf("the log has %d snapshots, %v", len(log.Nodes), err)
	}

	// Move back and forth, by ID and by number.
	show := func(box string, at int) {
		t.Helper()
		var out strings.Builder
		x, err := d.client.Exec(ctx, box,
			wire.ExecRequest{Cmd: []string{"sh", "-c", "cd /var/tmp/chain; cat count; ls | grep -c tenth-"}},
			client.Streams{Stdout: &out})
		want := fmt.Sprintf("%d\n%d\n", at, min(at/10, 10))
		if err != nil || out.String() != want {
			t.Errorf("snapshot %d shows %q, not %q (exit code %d, %v)", at, out.String(), want, x.Code, err)
		}
		// Chains are merged in the background. A root that is mounted afterwards has few layers.
		for deadline := time.Now().Add(patience); d.depth() > 30; time.Sleep(200 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Errorf("snapshot %d is mounted through %d layers", at, d.depth())
				return
			}
			for _, name := range []string{"box", "fork"} {
				if _, err := d.client.Stop(ctx, name); err != nil && !client.IsKind(err, client.KindNotFound) {
					t.Fatal(err)
				}
			}
			d.sh(ctx, box, "true")
		}
	}
	for _, to := range []struct {
		ref string
		at  int
	}{
		{fmt.Sprintf("HEAD~%d", n-1), 1}, {heads[n], n}, {heads[n/2], n / 2}, {"HEAD~7", n/2 - 7}, {heads[n-1], n - 1},
	} {
		if _, err := d.client.Checkout(ctx, "box", wire.CheckoutRequest{Node: to.ref}); err != nil {
			t.Fatal(err)
		}
		show("box", to.at)
	}
	if _, err := d.client.Fork(ctx, "box", wire.ForkRequest{Names: []string{"fork"}, At: heads[n/3]}); err != nil {
		t.Fatal(err)
	}
	show("fork", n/3)
	diff, err := d.client.Diff(ctx, "box", wire.DiffRequest{A: heads[1], B: heads[n]})
	if err != nil || len(diff.Changes) != 11 {
		t.Errorf("%d paths differ between first and last, want 11: %v", len(diff.Changes), err)
	}

	// Check again after a crash, and after gc.
	d.kill()
	d.start()
	show("fork", n/3)
	r, err := d.client.Verify(ctx, "", nil)
	if err != nil || len(r.Damage) > 0 || r.Unfinalized > 0 || r.Layers < n {
		t.Errorf("verify: %+v, %v", r, err)
	}
	res, err := d.client.GC(ctx, wire.GCRequest{Keep: wire.Keep{Last: 10}}, nil)
	if err != nil || len(res.Dropped) < n-30 {
		t.Fatalf("gc dropped %d snapshots, %v", len(res.Dropped), err)
	}
	if _, err := d.client.Checkout(ctx, "box", wire.CheckoutRequest{Node: heads[n-9]}); err != nil {
		t.Fatal(err)
	}
	show("box", n-9)
	show("fork", n/3)
	if r, err := d.client.Verify(ctx, "", nil); err != nil || len(r.Damage) > 0 || r.Unfinalized > 0 {
		t.Errorf("verify: %+v, %v", r, err)
	}
}

// sh runs a script, which must succeed.
func (d *doomed) sh(ctx context.Context, box, script string) wire.Exit {
	d.t.Helper()
	var said strings.Builder
	x, err := d.client.Exec(ctx, box, wire.ExecRequest{Cmd: []string{"sh", "-c", script}}, client.Streams{Stderr: &said})
	if err != nil || x.Code != 0 {
		d.t.Fatalf("%s: %+v, %v: %s", script, x, err, said.String())
	}
	return x
}

// depth returns the maximum number of layers of a mounted live root.
func (d *doomed) depth() (most int) {
	notes, err := filepath.Glob(filepath.Join(d.home, "sandboxes", "*", "mounted"))
	if err != nil {
		d.t.Fatal(err)
	}
	for _, name := range notes {
		text, err := os.ReadFile(name)
		if err != nil {
			d.t.Fatal(err)
		}
		var layers []string
		if err := json.Unmarshal(text, &layers); err != nil {
			d.t.Fatal(err)
		}
		most = max(most, len(layers))
	}
	return most
}
