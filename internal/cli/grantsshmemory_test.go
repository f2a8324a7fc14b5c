//go:build linux

package cli_test

import (
	"bufio"
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/coppice-dev/coppice/client/wire"
)

// notInMemory checks that no process of the home but the broker has a private key in its memory.
func (s *sshLab) notInMemory() {
	s.t.Helper()
	b, err := os.ReadFile(filepath.Join(s.keys, "user"))
	if err != nil {
		s.t.Fatal(err)
	}
	raw, err := ssh.ParseRawPrivateKey(b)
	if err != nil {
		s.t.Fatal(err)
	}
	secrets := [][]byte{[]byte(s.body), raw.(*ed25519.PrivateKey).Seed()}
	names := map[string]bool{}
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		s.t.Fatal(err)
	}
	id := s.id()
	for _, proc := range all {
		line, _ := os.ReadFile(proc + "/cmdline") // "" if it has exited
		env, _ := os.ReadFile(proc + "/environ")
		name, _, _ := strings.Cut(filepath.Base(string(line)), "\x00")
		name = filepath.Base(name)
		if !bytes.Contains(append(env, line...), []byte(s.dir)) && !bytes.Contains(line, []byte(id)) ||
			!strings.HasPrefix(name, "coppice") || name == "coppice-broker" {
			continue
		}
		names[name] = true
		// The search works: a gate knows the path of its grant.
		if found := s.searchMemory(proc, append(secrets, []byte(s.repos+"/acme/repo.git"))); found[0] || found[1] {
			s.t.Errorf("%s has the private key in its memory", name)
		} else if !found[2] && name == "coppice-gate" {
			s.t.Errorf("the memory of %s could not be searched", name)
		}
	}
	if !names["coppice-gate"] || !names["coppice-keeper"] {
		s.t.Errorf("searched the memory of %v only", names)
	}
}

// id returns the ID of the sandbox.
func (s *sshLab) id() string {
	s.t.Helper()
	var list wire.ListResult
	if err := json.Unmarshal([]byte(s.run("ls", "--json")), &list); err != nil || len(list.Sandboxes) != 1 {
		s.t.Fatalf("%+v, %v", list, err)
	}
	return list.Sandboxes[0].ID
}

// searchMemory reports which of texts are in the writable memory of a process.
func (s *sshLab) searchMemory(proc string, texts [][]byte) []bool {
	found := make([]bool, len(texts))
	maps, err := os.Open(proc + "/maps")
	if err != nil {
		return found
	}
	defer maps.Close()
	mem, err := os.Open(proc + "/mem")
	if err != nil {
		return found
	}
	defer mem.Close()
	const piece = 1 << 20
	buf := make([]byte, piece+4096) // texts are shorter than what pieces share
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		var from, to int64
		if _, err := fmt.Sscanf(lines.Text(), "%x-%x rw", &from, &to); err != nil {
			continue
		}
		for at := from; at < to; at += piece {
			n, _ := mem.ReadAt(buf[:min(int64(len(buf)), to-at)], at) // pages that are gone have nothing
			for i, text := range texts {
				found[i] = found[i] || bytes.Contains(buf[:n], text)
			}
		}
	}
	return found
}
