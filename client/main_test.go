package client_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
)

// daemon is the client of a real daemon, which serves all tests of this package; nil where no daemon can run.
var daemon *client.Client

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	if runtime.GOOS != "linux" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "client")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	bin, home := os.Getenv("COPPICE_EXEC_PATH"), filepath.Join(dir, "home")
	if _, err := os.Stat(filepath.Join(bin, "coppice")); bin == "" || err != nil {
		bin = filepath.Join(dir, "bin")
		build := exec.Command("go", "build", "-o", bin+"/", "../cmd/...")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build coppice: %v: %s\n", err, out)
			return 1
		}
	}
	serve := exec.Command(filepath.Join(bin, "coppice"), "serve", "--home", home)
	serve.Stderr = os.Stderr
	if err := serve.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		_ = serve.Process.Signal(os.Interrupt)
		_ = serve.Wait()
	}()
	daemon = client.New(client.Options{Socket: filepath.Join(home, "daemon.sock")})
	defer daemon.Close()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if _, err = daemon.Daemon(context.Background()); err == nil {
			break
		}
		if time.Now().After(deadline) {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	defer func() {
		all, _ := daemon.List(context.Background())
		for _, sb := range all {
			_ = daemon.Remove(context.Background(), sb.Name, true)
		}
	}()
	return m.Run()
}

// sandbox creates a sandbox from the host.
func sandbox(t *testing.T) *client.Sandbox {
	t.Helper()
	if daemon == nil {
		t.Skip("needs linux: the daemon runs only there")
	}
	sb, _, err := daemon.New(t.Context(), wire.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sb.Remove(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return sb
}
