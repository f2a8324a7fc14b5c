package registry

import (
	"context"
	"path/filepath"
	"strings"

	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/tty"
)

// Credentials are the user's credentials as stored by docker and podman: in their files, or in a helper
// docker-credential-* that these files name, which is executed. They are only read.
type Credentials struct {
	files []credentialFile
}

type credentialFile struct {
	path   string
	nested bool // it may have credentials for a part of a registry
}

// UserCredentials returns the credentials of the user with the given environment.
func UserCredentials(getenv func(string) string) *Credentials {
	c := &Credentials{}
	add := func(nested bool, dir string, below ...string) {
		if dir != "" {
			c.files = append(c.files, credentialFile{filepath.Join(append([]string{dir}, below...)...), nested})
		}
	}
	home := getenv("HOME")
	add(true, getenv("REGISTRY_AUTH_FILE"))
	if dir := getenv("DOCKER_CONFIG"); dir != "" {
		add(false, dir, "config.json")
	} else {
		add(false, home, ".docker/config.json")
	}
	add(true, getenv("XDG_RUNTIME_DIR"), "containers/auth.json")
	if dir := getenv("XDG_CONFIG_HOME"); dir != "" {
		add(true, dir, "containers/auth.json")
	} else {
		add(true, home, ".config/containers/auth.json")
	}
	return c
}

// get returns the first credentials for a registry. Errors do not quote the output of a helper or the content of
// a file, which may contain secrets.
func (c *Credentials) get(ctx context.Context, ref Reference) (auth.Credential, error) {
	for _, f := range c.files {
		none := func() error {
			return fault.New(fault.Denied, "cannot read the credentials for %s from %s or its helper",
				tty.Clean(ref.Host), f.path).
				WithHint("log in again: docker login %s", tty.Clean(ref.Host))
		}
		store, err := credentials.NewStore(f.path, credentials.StoreOptions{})
		if err != nil {
			return auth.EmptyCredential, none()
		}
		for _, key := range f.keys(ref) {
			found, err := store.Get(ctx, key)
			if err != nil {
				return auth.EmptyCredential, none()
			}
			if found != auth.EmptyCredential {
				return found, nil
			}
		}
	}
	return auth.EmptyCredential, nil
}

// keys returns the names of a repository's credentials in a file, the most specific first.
func (f credentialFile) keys(ref Reference) (keys []string) {
	if f.nested {
		for at := ref.Name(); strings.Contains(at, "/"); at = at[:strings.LastIndex(at, "/")] {
			keys = append(keys, at)
		}
		return append(keys, ref.Host)
	}
	return append(keys, credentials.ServerAddressFromRegistry(ref.Host))
}
