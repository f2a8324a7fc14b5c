package store

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"filippo.io/age"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// ageIn returns the store below a directory.
func ageIn(t *testing.T, fsys vfs.FS, dir string) *Age {
	t.Helper()
	a, err := NewAge(AgeOptions{FS: fsys, Dir: filepath.Join(dir, "home", "secrets"),
		Identity: filepath.Join(dir, "config", "coppice", "identity"), Now: atNoon})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// put stores a value, or fails the test.
func put(t *testing.T, a *Age, name, value string) {
	t.Helper()
	if err := a.Put(t.Context(), Ref{Name: name, Kind: "opaque"}, []byte(value)); err != nil {
		t.Fatal(err)
	}
}

// get returns a value as a string, or "" if there is none.
func get(t *testing.T, a *Age, name string) string {
	t.Helper()
	v, err := a.Get(t.Context(), Ref{Name: name})
	mustHide(t, err)
	if err != nil && !fault.Is(err, fault.NotFound) {
		t.Errorf("%s: %v", name, err)
	}
	defer v.Close()
	return string(v.Bytes())
}

func TestAge_KeepsValues(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := ageIn(t, vfs.OS(), dir)
	if err := a.Check(t.Context()); err != nil {
		t.Errorf("an empty store: %v", err)
	}
	_, err := a.Get(t.Context(), Ref{Name: "a"})
	mustFail(t, err, fault.NotFound)
	mustFail(t, a.Delete(t.Context(), Ref{Name: "a"}), fault.NotFound)
	if names, err := a.Names(); err != nil || names != nil {
		t.Errorf("%q %v", names, err)
	}
	value := []byte(mark + "1")
	if err := a.Put(t.Context(), Ref{Name: "a"}, value); err != nil || string(value) != mark+"1" {
		t.Fatalf("%q %v", value, err)
	}
	put(t, a, "b", strings.Repeat("x", MaxValue))
	put(t, a, "a", mark+"2")
	if got := get(t, a, "a"); got != mark+"2" {
		t.Errorf("%q", got)
	}
	if got := get(t, ageIn(t, vfs.OS(), dir), "b"); len(got) != MaxValue {
		t.Errorf("%d bytes", len(got))
	}
	if names, err := a.Names(); err != nil || !reflect.DeepEqual(names, []string{"a", "b"}) {
		t.Errorf("%q %v", names, err)
	}
	if err := a.Delete(t.Context(), Ref{Name: "a"}); err != nil {
		t.Error(err)
	}
	_, err = a.Get(t.Context(), Ref{Name: "a"})
	mustFail(t, err, fault.NotFound)
	for _, bad := range []string{"", "\n", mark + "\n", mark + "\x00"} {
		mustFail(t, a.Put(t.Context(), Ref{Name: "b"}, []byte(bad)), fault.Invalid)
	}
	for _, name := range []string{"", "../b", "B", "b.age"} {
		mustFail(t, a.Put(t.Context(), Ref{Name: name}, []byte(mark)), fault.Invalid)
		_, err := a.Get(t.Context(), Ref{Name: name})
		mustFail(t, err, fault.Invalid)
		mustFail(t, a.Delete(t.Context(), Ref{Name: name}), fault.Invalid)
	}
}

// TestAge_WritesPrivateFiles checks modes, and that no file has a value in plain text.
func TestAge_WritesPrivateFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := ageIn(t, vfs.OS(), dir)
	put(t, a, "a", mark)
	files := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		if d.IsDir() {
			return nil
		}
		files++
		b, err := os.ReadFile(path)
		if bytes.Contains(b, []byte(mark)) {
			t.Errorf("%s contains the value", path)
		}
		return err
	})
	if err != nil || files != 3 {
		t.Errorf("%d files, %v", files, err)
	}
}

func TestAge_KeepsTimesAndKind(t *testing.T) {
	t.Parallel()
	a := ageIn(t, vfs.OS(), t.TempDir())
	now := noon
	a.now = func() time.Time { return now }
	put(t, a, "a", mark)
	now = noon.Add(time.Hour)
	put(t, a, "a", mark)
	ids, err := a.identities()
	if err != nil {
		t.Fatal(err)
	}
	r, err := a.read("a", ids)
	if want := (record{Name: "a", Kind: "opaque", Value: []byte(mark), Created: noon, Rotated: now}); err != nil || !reflect.DeepEqual(r, want) {
		t.Errorf("%+v %v", r, err)
	}
	sealed, err := os.ReadFile(a.path("a"))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := age.Decrypt(bytes.NewReader(sealed), ids...)
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if _, err := text.ReadFrom(plain); err != nil {
		t.Fatal(err)
	}
	want := "coppice-secret 1\n" + `{"name":"a","kind":"opaque","value":"WHl6enlNYXJrZWRWYWx1ZTQ3MTE=",` +
		`"created":"2026-11-28T12:00:00Z","rotated":"2026-11-28T13:00:00Z"}`
	if text.String() != want {
		t.Errorf("%s", text.String())
	}
}

// TestAge_ReportsDamage checks that each way to damage one file is Corrupt with its path, and leaves others readable.
func TestAge_ReportsDamage(t *testing.T) {
	t.Parallel()
	a := ageIn(t, vfs.OS(), t.TempDir())
	put(t, a, "a", mark)
	put(t, a, "b", mark+"b")
	sealed, err := os.ReadFile(a.path("a"))
	if err != nil {
		t.Fatal(err)
	}
	ids, recipients, err := a.keys()
	if err != nil {
		t.Fatal(err)
	}
	other, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := record{Name: "a", Value: []byte(mark)}.seal([]age.Recipient{other.Recipient()})
	if err != nil {
		t.Fatal(err)
	}
	bad, err := record{Name: "a", Value: []byte(mark + "\n")}.seal(recipients)
	if err != nil {
		t.Fatal(err)
	}
	swapped, err := os.ReadFile(a.path("b"))
	if err != nil {
		t.Fatal(err)
	}
	// plain encrypts any text.
	plain := func(text string) []byte {
		var out bytes.Buffer
		w, err := age.Encrypt(&out, recipients...)
		if err == nil {
			_, err = w.Write([]byte(text))
		}
		if err == nil {
			err = w.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	cases := map[string][]byte{
		"empty": nil, "text": []byte(mark), "foreign": foreign, "swapped": swapped, "bad value": bad, "plain": plain(mark),
		"torn JSON": plain(title + `{"name":"a","value":"` + mark), "more JSON": plain(title + `{"name":"a"} {}`),
		"unknown field": plain(title + `{"name":"a","` + mark + `":1}`), "large": plain(strings.Repeat(mark, 1000)),
	}
	for n := 1; n < len(sealed); n += 7 {
		cases[fmt.Sprint("cut at ", n)] = sealed[:n]
		flipped := bytes.Clone(sealed)
		flipped[n] ^= 1
		cases[fmt.Sprint("flipped at ", n)] = flipped
	}
	for name, content := range cases {
		if err := os.WriteFile(a.path("a"), content, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := a.Get(t.Context(), Ref{Name: "a"})
		if mustFail(t, err, fault.Corrupt); err == nil || !strings.Contains(err.Error(), a.path("a")) {
			t.Errorf("%s: %v", name, err)
		}
		if get(t, a, "b") != mark+"b" {
			t.Errorf("%s: b is lost", name)
		}
	}
	if err := os.WriteFile(a.path("a"), plain("coppice-secret 2\n"+mark), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = a.Get(t.Context(), Ref{Name: "a"})
	mustFail(t, err, fault.Version)
	put(t, a, "a", mark) // a damaged file can be replaced
	if get(t, a, "a") != mark {
		t.Error("a is lost")
	}
	if _, err := open(sealed, ids); err != nil {
		t.Error(err)
	}
}

func TestAge_IdentityMustBePrivate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := ageIn(t, vfs.OS(), dir)
	put(t, a, "a", mark)
	failsWith := func(want fault.Kind) {
		t.Helper()
		_, err := a.Get(t.Context(), Ref{Name: "a"})
		mustFail(t, err, want)
		mustFail(t, a.Put(t.Context(), Ref{Name: "b"}, []byte(mark)), want)
		mustFail(t, a.Check(t.Context()), want)
		if fault.HintOf(err) == "" {
			t.Errorf("%v: no hint", err)
		}
		if names, err := a.Names(); err != nil || len(names) != 1 {
			t.Errorf("%q %v", names, err)
		}
	}
	for _, mode := range []os.FileMode{0o640, 0o604, 0o620} {
		if err := os.Chmod(a.identity, mode); err != nil {
			t.Fatal(err)
		}
		failsWith(fault.Denied)
	}
	if err := os.Rename(a.identity, a.identity+".away"); err != nil {
		t.Fatal(err)
	}
	failsWith(fault.Unavailable)
	if err := os.Remove(a.recipientsPath()); err != nil {
		t.Fatal(err)
	}
	failsWith(fault.Unavailable)
	if err := os.WriteFile(a.identity, []byte("AGE-SECRET-KEY-"+mark), 0o600); err != nil {
		t.Fatal(err)
	}
	failsWith(fault.Corrupt)
	if err := os.Chmod(a.identity+".away", 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(a.identity+".away", a.identity); err != nil {
		t.Fatal(err)
	}
	if put(t, a, "c", mark); get(t, a, "a") != mark || get(t, a, "c") != mark {
		t.Error("secrets are lost")
	}
}

func TestAge_HonorsRecipients(t *testing.T) {
	t.Parallel()
	a := ageIn(t, vfs.OS(), t.TempDir())
	put(t, a, "a", mark)
	own, err := os.ReadFile(a.recipientsPath())
	if err != nil {
		t.Fatal(err)
	}
	backup, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	both := string(own) + "# backup\n" + backup.Recipient().String() + "\n"
	recipients := func(text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(a.recipientsPath(), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(a.recipientsPath(), mode); err != nil {
			t.Fatal(err)
		}
	}
	recipients(both, 0o644)
	put(t, a, "b", mark)
	sealed, err := os.ReadFile(a.path("b"))
	if err != nil {
		t.Fatal(err)
	}
	if r, err := open(sealed, []age.Identity{backup}); err != nil || string(r.Value) != mark {
		t.Errorf("the backup's identity: %v", err)
	}
	for _, text := range []string{backup.Recipient().String() + "\n", "", mark + "\n", "age1" + mark + "\n"} {
		recipients(text, 0o600)
		mustFail(t, a.Put(t.Context(), Ref{Name: "a"}, []byte(mark+"2")), fault.Invalid)
	}
	recipients(both, 0o622)
	mustFail(t, a.Put(t.Context(), Ref{Name: "a"}, []byte(mark+"2")), fault.Denied)
	if get(t, a, "a") != mark {
		t.Error("the old value is lost")
	}
}

// TestAge_SharesTheIdentity checks that several stores which are first used at the same time have one identity.
func TestAge_SharesTheIdentity(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var done sync.WaitGroup
	stores := make([]*Age, 8)
	for i := range stores {
		a := ageIn(t, vfs.OS(), dir)
		a.dir = filepath.Join(dir, fmt.Sprint("home", i), "secrets")
		stores[i] = a
		done.Go(func() {
			if err := a.Put(t.Context(), Ref{Name: "a"}, []byte(mark)); err != nil {
				t.Error(err)
			}
		})
	}
	done.Wait()
	for _, a := range stores {
		if get(t, a, "a") != mark {
			t.Error("a secret is lost")
		}
	}
	if entries, err := os.ReadDir(filepath.Dir(stores[0].identity)); err != nil || len(entries) != 1 {
		t.Errorf("%v %v", entries, err)
	}
}

// TestAge_SurvivesFaultsAndCrashes lets each call of a first Put and of one that replaces a value fail, and crashes
// before each call: the old or the new value is read, and no other secret is lost.
func TestAge_SurvivesFaultsAndCrashes(t *testing.T) {
	t.Parallel()
	for _, first := range []bool{true, false} {
		for k := 1; ; k++ {
			if !ageFails(t, first, k) {
				if k < 5 {
					t.Errorf("%d calls", k)
				}
				break
			}
		}
	}
}

// ageFails lets call k of a Put fail, and reports whether there is such a call.
func ageFails(t *testing.T, first bool, k int) bool {
	dir := t.TempDir()
	disk := vfs.NewCrashable(dir)
	defer disk.Close()
	faulty := &vfs.Faulty{FS: disk}
	a := ageIn(t, faulty, dir)
	old := ""
	if !first {
		old = mark + "old"
		put(t, a, "other", mark)
		put(t, a, "a", old)
	}
	done := false
	check := func(at, how string) {
		t.Helper()
		b := ageIn(t, vfs.OS(), at)
		if got := get(t, b, "a"); got != mark+"new" && (got != old || done) {
			t.Errorf("first %v, call %d, %s, written %v: %q", first, k, how, done, got)
		}
		if !first && get(t, b, "other") != mark {
			t.Errorf("call %d, %s: the other secret is lost", k, how)
		}
		put(t, b, "a", mark+"next") // the store can be used again
		if get(t, b, "a") != mark+"next" {
			t.Errorf("call %d, %s: cannot be written", k, how)
		}
	}
	crash := func() {
		for i, how := range []vfs.Crash{vfs.Kill, {}, {Names: 100}, vfs.PowerLoss(uint64(k))} {
			to := filepath.Join(t.TempDir(), "clone")
			if err := disk.CrashClone(to, how); err != nil {
				t.Fatal(err)
			}
			check(to, fmt.Sprint("crash ", i))
		}
	}
	faulty.FailAt(k, syscall.EIO, false)
	calls := 0
	disk.OnCall = func(vfs.Op) {
		if calls++; calls == k { // each k adds one state
			crash()
		}
	}
	err := a.Put(t.Context(), Ref{Name: "a"}, []byte(mark+"new"))
	disk.OnCall = nil
	mustHide(t, err)
	done = err == nil
	failed := faulty.Failed()
	if !failed && err != nil {
		t.Errorf("call %d: %v", k, err)
	}
	crash()
	faulty.FailAt(0, 0, false)
	check(dir, "fault")
	return failed
}

func TestAge_SurvivesFullDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	faulty := &vfs.Faulty{FS: vfs.OS()}
	a := ageIn(t, faulty, dir)
	put(t, a, "a", mark)
	for k := 1; ; k++ {
		faulty.FailAt(k, syscall.ENOSPC, true)
		err := a.Put(t.Context(), Ref{Name: "a"}, []byte(mark))
		failed := faulty.Failed()
		if failed {
			mustFail(t, err, fault.NoSpace)
		}
		faulty.FailAt(0, 0, false)
		if get(t, a, "a") != mark {
			t.Fatal("the value is lost")
		}
		if !failed {
			break
		}
	}
	faulty.FailAt(1, syscall.EIO, false)
	if err := a.Delete(t.Context(), Ref{Name: "a"}); err == nil || get(t, a, "a") != mark {
		t.Errorf("%v", err)
	}
}
