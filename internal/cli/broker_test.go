//go:build linux

package cli_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/coppice-dev/coppice/internal/fault"
	secretclient "github.com/coppice-dev/coppice/internal/secret/client"
)

// cmdBroker is "broker kill|runs". With kill it kills the broker of the home with SIGKILL, and waits until it has
// exited; with runs the broker must run, or with "!" must not.
func cmdBroker(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 1 || args[0] != "kill" && args[0] != "runs" {
		ts.Fatalf("usage: broker kill|runs")
	}
	home := ts.Getenv("COPPICE_HOME")
	if args[0] == "kill" {
		ts.Check(killBroker(home))
		return
	}
	if _, err := secretclient.Dial(home).Status(context.Background()); (err == nil) == neg {
		ts.Fatalf("broker: %v", err)
	}
}

// killBroker kills the broker of a home, if one runs, and waits until it has exited.
func killBroker(home string) error {
	st, err := secretclient.Dial(home).Status(context.Background())
	if fault.Is(err, fault.Unavailable) {
		return nil // none runs
	}
	if err == nil {
		err = syscall.Kill(st.PID, syscall.SIGKILL)
	}
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		// A zombie that its parent does not reap has also exited.
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", st.PID))
		if len(stat) == 0 || strings.Contains(string(stat), ") Z ") {
			return nil
		}
	}
	return fmt.Errorf("broker %d still runs", st.PID)
}
