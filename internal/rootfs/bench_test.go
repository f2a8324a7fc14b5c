//go:build linux

package rootfs_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/coppice-dev/coppice/internal/rootfs"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// BenchmarkPresent presents a new generation on the host, and one that was presented before, with few and many
// layers. For real root the host has few parts, and for an unprivileged user many.
func BenchmarkPresent(b *testing.B) {
	for _, layers := range []int{0, 30} {
		home := filepath.Join(b.TempDir(), "home")
		st := rootspec.Stack{Host: true}
		for i := range layers {
			l := filepath.Join(home, "layers", fmt.Sprint(i), "fs")
			if err := os.MkdirAll(l+"/usr/lib", 0o755); err != nil {
				b.Fatal(err)
			}
			st.Layers = append(st.Layers, l)
		}
		if err := os.MkdirAll(home, 0o700); err != nil {
			b.Fatal(err)
		}
		for _, root := range []bool{true, false} {
			drv, err := rootfs.New("overlay", rootfs.Deps{Home: home, Root: root})
			if err != nil {
				b.Fatal(err)
			}
			who := map[bool]string{true: "root", false: "user"}[root]
			b.Run(fmt.Sprintf("new/%s/layers=%d", who, layers), func(b *testing.B) {
				n := 0
				for b.Loop() {
					n++
					if _, err := drv.Present(context.Background(),
						rootfs.Live{Dir: fmt.Sprintf("%s/%s%d", home, who, n), Stack: st}); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run(fmt.Sprintf("again/%s/layers=%d", who, layers), func(b *testing.B) {
				for b.Loop() {
					if _, err := drv.Present(context.Background(), rootfs.Live{Dir: home + "/" + who + "1", Stack: st}); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkMask requests an existing mask, as each start does: 150 paths in a home directory, few of which exist.
func BenchmarkMask(b *testing.B) {
	mounts, err := rootfs.HostMounts()
	if err != nil {
		b.Fatal(err)
	}
	home := b.TempDir()
	k := rootfs.Mask{Below: rootspec.Stack{Host: true}, Mounts: mounts}
	for i := range 150 {
		k.Hide = append(k.Hide, fmt.Sprintf("/root/.config/tool%d/credentials", i))
	}
	for b.Loop() {
		if _, err := k.Make(home); err != nil {
			b.Fatal(err)
		}
	}
}
