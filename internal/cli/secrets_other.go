//go:build !linux

package cli

import (
	"context"
	"runtime"

	"github.com/coppice-dev/coppice/internal/fault"
)

func errNoBroker() error {
	return fault.New(fault.Unsupported, "secrets require Linux: on %s, coppice is only a client", runtime.GOOS).
		WithHint("run coppice secret on the machine of the daemon")
}

func (a *app) startBroker(context.Context, string) error { return errNoBroker() }

func stopBroker(context.Context, string) error { return nil }

// broker is a secretStore, which returns Unsupported.
type broker struct{}

func brokerOf(string) secretStore { return broker{} }

func (broker) Set(context.Context, string, string, string, []byte) (storedSecret, error) {
	return storedSecret{}, errNoBroker()
}

func (broker) List(context.Context) ([]storedSecret, error) { return nil, errNoBroker() }

func (broker) Remove(context.Context, string, bool) error { return errNoBroker() }

func (broker) Test(context.Context, string) (storedSecret, error) {
	return storedSecret{}, errNoBroker()
}
