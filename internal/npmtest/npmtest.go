//go:build linux

// Package npmtest installs packages of the npm registry for tests.
package npmtest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// nodeTrusts is the environment variable with the path of a file of certificates.
const nodeTrusts = "NODE_EXTRA_CA_CERTS"

// Install installs the packages that the package.json in dir names, and returns their directory. If dir has a
// package-lock.json, it installs exactly those versions, without their install scripts. The directory is cached
// for later runs. The test is skipped without npm, or if the registry does not answer for the package probe.
func Install(t testing.TB, dir, probe string) string {
	t.Helper()
	made, err := install(dir, probe)
	if skip := skipped(""); errors.As(err, &skip) {
		t.Skip(string(skip))
	}
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// skipped is the reason why a test cannot run here.
type skipped string

func (e skipped) Error() string { return string(e) }

func install(dir, probe string) (string, error) {
	if _, err := exec.LookPath("npm"); err != nil {
		return "", skipped(fmt.Sprintf("needs npm: %v", err))
	}
	files, digest, err := wanted(dir)
	if err != nil {
		return "", err
	}
	// $HOME may be in /tmp, which sandboxes do not see.
	me, err := user.Current()
	if err != nil {
		return "", err
	}
	cache := filepath.Join(me.HomeDir, ".cache", "coppice-test-npm")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	// The lock also excludes other processes.
	lock, err := os.OpenFile(filepath.Join(cache, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", err
	}
	made := filepath.Join(cache, filepath.Base(dir)+"-"+digest)
	if _, err := os.Stat(made); err == nil {
		return made, nil
	}
	if out, err := npm(30*time.Second, "view", probe, "version"); err != nil {
		return "", skipped(fmt.Sprintf("needs the npm registry: %v: %.200q", err, out))
	}
	tmp, err := os.MkdirTemp(cache, ".new-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	if err := fetch(tmp, files); err != nil {
		return "", err
	}
	return made, os.Rename(tmp, made)
}

const (
	manifest = "package.json"
	lockfile = "package-lock.json"
)

// wanted returns the package files in dir, and their digest.
func wanted(dir string) (files map[string][]byte, digest string, err error) {
	files = map[string][]byte{}
	sum := sha256.New()
	for _, name := range []string{manifest, lockfile} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) && name == lockfile {
			continue
		}
		if err != nil {
			return nil, "", err
		}
		files[name] = b
		sum.Write(b)
	}
	return files, hex.EncodeToString(sum.Sum(nil)[:6]), nil
}

func fetch(dir string, files map[string][]byte) error {
	for name, b := range files {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			return err
		}
	}
	how := []string{"install"}
	if files[lockfile] != nil {
		how = []string{"ci", "--ignore-scripts"}
	}
	if out, err := npm(5*time.Minute, append(how, "--prefix", dir, "--no-audit", "--no-fund")...); err != nil {
		return fmt.Errorf("npm %s: %w: %s", how[0], err, out)
	}
	return nil
}

func npm(patience time.Duration, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "npm", append(args, "--fetch-retries=1", "--no-update-notifier")...)
	if os.Getenv(nodeTrusts) == "" { // the certificates of the system, as Debian's own node uses
		cmd.Env = append(os.Environ(), nodeTrusts+"=/etc/ssl/certs/ca-certificates.crt")
	}
	return cmd.CombinedOutput()
}
