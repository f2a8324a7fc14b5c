package vaulttest

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// postgres is a PostgreSQL on a port of 127.0.0.1, with the superuser owner.
type postgres struct {
	t    testing.TB
	bin  string
	port int
}

// startPostgres starts a PostgreSQL that runs until the test ends. It refuses to run as root, and then runs as the user
// that its package made.
func startPostgres(t testing.TB) *postgres {
	t.Helper()
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil || len(found) == 0 {
		t.Skip("needs postgres: for dynamic roles")
	}
	p := &postgres{t: t, bin: found[len(found)-1]}
	dir, err := os.MkdirTemp("", "coppice-postgres-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	var as *syscall.Credential
	if os.Geteuid() == 0 {
		u, err := user.Lookup("postgres")
		if err != nil {
			t.Fatal(err)
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		if err := os.Chown(dir, uid, gid); err != nil {
			t.Fatal(err)
		}
		as = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	data := filepath.Join(dir, "data")
	initdb := exec.Command(filepath.Join(p.bin, "initdb"), "-D", data, "-U", "owner", "-A", "trust", "--no-sync",
		"-E", "UTF8", "--locale=C")
	initdb.SysProcAttr, initdb.Dir = &syscall.SysProcAttr{Credential: as}, dir
	if out, err := initdb.CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.port = l.Addr().(*net.TCPAddr).Port
	l.Close()
	cmd := exec.Command(filepath.Join(p.bin, "postgres"), "-D", data, "-h", "127.0.0.1", "-p",
		strconv.Itoa(p.port), "-k", dir, "-F")
	cmd.SysProcAttr, cmd.Dir = &syscall.SysProcAttr{Credential: as}, dir
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGQUIT) // immediate shutdown, with its children
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("postgres: %s", said.String())
		}
	})
	await(t, func() bool { _, err := p.query("select 1"); return err == nil })
	return p
}

// query returns the lines of an answer.
func (p *postgres) query(sql string) ([]string, error) {
	out, err := exec.Command(filepath.Join(p.bin, "psql"), "-h", "127.0.0.1", "-p", fmt.Sprint(p.port),
		"-U", "owner", "-d", "postgres", "-XAtc", sql).Output()
	return strings.Fields(string(out)), err
}

// roles returns the roles that Vault made.
func (p *postgres) roles() []string {
	p.t.Helper()
	all, err := p.query("select rolname from pg_roles where rolname like 'v-%'")
	if err != nil {
		p.t.Fatal(err)
	}
	return all
}
