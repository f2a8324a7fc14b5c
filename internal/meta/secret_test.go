package meta

import (
	"database/sql"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/secretbox"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
)

const secret = "correct-horse-battery-staple"

// shows returns the names of the files of a directory that contain a secret, in clear or encoded.
func shows(t testing.TB, dir, secret string) (files []string) {
	t.Helper()
	forms := []string{secret, hex.EncodeToString([]byte(secret))}
	for cut := range 3 {
		s := base64.RawStdEncoding.EncodeToString([]byte(secret[cut:]))
		forms = append(forms, s[:len(s)-2])
	}
	for _, e := range must(os.ReadDir(dir))(t) {
		b := string(must(os.ReadFile(filepath.Join(dir, e.Name())))(t))
		if slices.ContainsFunc(forms, func(f string) bool { return strings.Contains(b, f) }) {
			files = append(files, e.Name())
		}
	}
	return files
}

// alike reports whether two configs are the same.
func alike(t testing.TB, a, b Config) bool {
	t.Helper()
	return string(must(json.Marshal(a))(t)) == string(must(json.Marshal(b))(t))
}

// hide puts the secret into every field of a record that can contain one.
func hide(r *Sandbox) {
	r.From, r.Env, r.Learnt, r.Mark, r.Notices = "https://me:"+secret+"@host/", []string{"A=" + secret},
		[]string{"B=" + secret}, secret, []string{secret}
	r.Halted = &Halt{At: epoch, Why: secret}
	r.Timed = []TimedRule{{Rule: "host/" + secret, Until: epoch}}
	r.Run = &wire.Run{RunRequest: wire.RunRequest{Cmd: []string{"cmd", secret}, Env: []string{"B=" + secret}, Dir: secret},
		Exec: "x", Exit: &wire.Exit{Message: secret}}
}

// TestDatabase_HoldsNoPlaintextSecret looks at every file of the database while a secret is
// written, and after it.
func TestDatabase_HoldsNoPlaintextSecret(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	path := filepath.Join(t.TempDir(), "meta.db")
	d := must(Open(ctx, path))(t)
	clean := func(when string) {
		t.Helper()
		if files := shows(t, filepath.Dir(path), secret); len(files) > 0 {
			t.Errorf("%s: a secret is in %v", when, files)
		}
	}
	rec := box(t, d, "a", "")
	var want Sandbox
	ok(t, d.UpdateSandbox(ctx, rec.ID, func(r *Sandbox) error {
		hide(r)
		r.Policy, r.PolicyText = "sha256:p", "env: "+secret
		r.Origins, r.OriginsText = "sha256:o", "origins: "+secret
		want = *r
		return nil
	}))
	ok(t, d.KeepAnswer(ctx, "key", []byte(secret), time.Hour))
	clean("written")
	is := func() {
		t.Helper()
		all := must(d.Sandboxes(ctx))(t)
		if got := must(d.Sandbox(ctx, "a"))(t); !alike(t, got.Config, want.Config) || len(all) != 1 ||
			!alike(t, all[0].Config, want.Config) {
			t.Errorf("got %+v; want %+v", got, want)
		}
		if got := must(d.Policy(ctx, "sha256:p"))(t); got != "env: "+secret {
			t.Errorf("the policy is %q", got)
		}
		if got := must(d.Answer(ctx, "key"))(t); string(got) != secret {
			t.Errorf("the answer is %q", got)
		}
	}
	is()
	ok(t, d.Close())
	clean("closed")
	d = must(Open(ctx, path))(t)
	defer d.Close()
	is()
	clean("opened again")
}

// old makes a database as version 3 left it, with secrets in clear on used and on free pages.
func old(t testing.TB) (path string, want Sandbox) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "meta.db")
	d := must(Open(t.Context(), path))(t)
	want = box(t, d, "a", "")
	hide(&want)
	ok(t, d.Close())
	ok(t, os.Remove(filepath.Join(filepath.Dir(path), keyName)))
	db := must(sql.Open("sqlite", path))(t)
	defer db.Close()
	want.Policy = "sha256:p"
	c := want.Config
	c.Enforced = nil
	must(db.Exec("UPDATE sandboxes SET config=?", string(must(json.Marshal(c))(t))))(t)
	must(db.Exec("INSERT INTO policies VALUES('sha256:p',?)", "env: "+secret))(t)
	must(db.Exec("INSERT INTO answers VALUES('key',?,?)", []byte(secret), time.Now().Add(time.Hour).UnixMicro()))(t)
	for i := range 50 {
		must(db.Exec("INSERT INTO policies VALUES(?,?)", fmt.Sprint("sha256:", i), strings.Repeat(secret+" ", 100)))(t)
	}
	must(db.Exec("DELETE FROM policies WHERE digest<>'sha256:p'"))(t)
	must(db.Exec("DELETE FROM settings"))(t)
	must(db.Exec("DROP TABLE grants; DROP TABLE tickets; DROP TABLE redos; DROP TABLE memories; PRAGMA user_version=3"))(t)
	return path, want
}

// TestOpen_EncryptsOldDatabase opens a database with plaintext values: they are read, and no file
// contains them afterwards, also when an earlier attempt was interrupted or the key was lost.
func TestOpen_EncryptsOldDatabase(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]func(t *testing.T, path string){
		"at once": func(*testing.T, string) {},
		"with the key made": func(t *testing.T, path string) {
			must(secretbox.Make(vfs.OS(), filepath.Join(filepath.Dir(path), keyName)))(t)
		},
		"with a key that was lost": func(t *testing.T, path string) {
			ok(t, os.WriteFile(filepath.Join(filepath.Dir(path), keyName), []byte("lost\n"), 0o600))
		},
		"before it was swept": func(t *testing.T, path string) {
			d := &DB{Now: time.Now, path: path, turn: make(chan struct{}, 1), readers: make(chan *link, maxReaders)}
			for range maxReaders {
				d.readers <- nil
			}
			d.w = must(sql.Open("sqlite", dsn(path, "rw", "")))(t)
			d.r = must(sql.Open("sqlite", dsn(path, "rw", "&_pragma=query_only(1)")))(t)
			d.writer = must(newLink(t.Context(), d.w))(t)
			ok(t, d.inspect(t.Context(), 1))
			d.key = must(secretbox.Make(vfs.OS(), filepath.Join(filepath.Dir(path), keyName)))(t)
			ok(t, d.sealAll(t.Context()))
			ok(t, d.Close())
			if len(shows(t, filepath.Dir(path), secret)) == 0 {
				t.Error("nothing is left to sweep")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path, want := old(t)
			if len(shows(t, filepath.Dir(path), secret)) == 0 {
				t.Fatal("no file contains a secret: the test is void")
			}
			before(t, path)
			d := must(Open(t.Context(), path))(t)
			defer d.Close()
			for range 2 {
				if files := shows(t, filepath.Dir(path), secret); len(files) > 0 {
					t.Errorf("a secret is in %v", files)
				}
				got := must(d.Sandbox(t.Context(), "a"))(t)
				if !alike(t, got.Config, want.Config) {
					t.Errorf("got %+v; want %+v", got, want)
				}
				if text := must(d.Policy(t.Context(), "sha256:p"))(t); text != "env: "+secret {
					t.Errorf("the policy is %q", text)
				}
				if a := must(d.Answer(t.Context(), "key"))(t); string(a) != secret {
					t.Errorf("the answer is %q", a)
				}
				ok(t, d.Check(t.Context()))
				ok(t, d.Close())
				d = must(Open(t.Context(), path))(t)
			}
		})
	}
}

// TestOpen_WithoutKeyKeepsEncryptedValues checks that encrypted values without their key are
// refused and kept until the user gives them up explicitly, and that nothing else is lost then.
func TestOpen_WithoutKeyKeepsEncryptedValues(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	path := filepath.Join(t.TempDir(), "meta.db")
	key := filepath.Join(filepath.Dir(path), keyName)
	d := must(Open(ctx, path))(t)
	rec := box(t, d, "a", "")
	snap(t, d, &rec, "kept")
	ok(t, d.UpdateSandbox(ctx, rec.ID, func(r *Sandbox) error {
		hide(r)
		r.Again, r.Policy, r.PolicyText = true, "sha256:p", secret
		return nil
	}))
	ok(t, d.KeepAnswer(ctx, "key", []byte(secret), time.Hour))
	ok(t, d.Close())
	good := must(os.ReadFile(key))(t)

	refused := func(when string, kind fault.Kind, hint string) {
		t.Helper()
		before := must(os.ReadFile(path))(t)
		d, err := Open(ctx, path)
		if d != nil || !fault.Is(err, kind) || !strings.Contains(fault.HintOf(err), hint) {
			t.Fatalf("%s: %v (%s), %q", when, err, fault.KindOf(err), fault.HintOf(err))
		}
		if after := must(os.ReadFile(path))(t); !slices.Equal(before, after) {
			t.Errorf("%s: the database was changed", when)
		}
	}
	giveUp := "echo lost >" + key
	ok(t, os.Remove(key))
	refused("missing", fault.Corrupt, giveUp)
	if _, err := os.Lstat(key); err == nil {
		t.Error("a new key was made, which decrypts nothing")
	}
	must(secretbox.Make(vfs.OS(), key))(t)
	refused("another one", fault.Corrupt, giveUp)
	ok(t, os.WriteFile(key, []byte("x"), 0o600))
	refused("damaged", fault.Corrupt, giveUp)
	ok(t, os.WriteFile(key, good, 0o600))
	ok(t, os.Chmod(key, 0o644))
	refused("open to others", fault.Denied, "chmod 600 "+key)
	ok(t, os.Chmod(key, 0o600))
	d = must(Open(ctx, path))(t)
	if got := must(d.Sandbox(ctx, "a"))(t); got.Mark != secret {
		t.Errorf("with the key again: %+v", got)
	}
	ok(t, d.Close())

	ok(t, os.WriteFile(key, []byte("lost\n"), 0o600))
	d = must(Open(ctx, path))(t)
	for range 2 {
		got := must(d.Sandbox(ctx, "a"))(t)
		if got.Head != rec.Head || got.Driver != rec.Driver || len(got.Env) > 0 || got.Run != nil || got.Again ||
			!slices.Equal(got.Notices, []string{lostNotice}) {
			t.Errorf("got %+v", got)
		}
		if h := must(d.History(ctx, rec.ID))(t); len(h.Snapshots) != 2 {
			t.Errorf("%d snapshots are left", len(h.Snapshots))
		}
		if _, err := d.Policy(ctx, "sha256:p"); !fault.Is(err, fault.Corrupt) {
			t.Errorf("the policy: %v", err)
		}
		if a := must(d.Answer(ctx, "key"))(t); a != nil {
			t.Errorf("the answer is %q", a)
		}
		ok(t, d.Check(ctx))
		ok(t, d.Close())
		d = must(Open(ctx, path))(t)
	}
	ok(t, d.UpdateSandbox(ctx, rec.ID, func(r *Sandbox) error { r.Env = []string{"A=2"}; return nil }))
	ok(t, d.Close())
}

func TestEncryptedValue_RefusesDamage(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	path := sample(t)
	db := must(sql.Open("sqlite", path))(t)
	must(db.Exec(`UPDATE sandboxes SET config=json_set(config,'$.sealed',json_extract(config,'$.sealed')||'A')`))(t)
	ok(t, db.Close())
	d := must(Open(ctx, path))(t)
	defer d.Close()
	if rec, err := d.Sandbox(ctx, "web-1"); !fault.Is(err, fault.Corrupt) {
		t.Errorf("got %+v, %v", rec, err)
	}
}

// TestConfig_RoundTripsEncrypted encodes arbitrary configurations, and decodes them from the
// encrypted form only.
func TestConfig_RoundTripsEncrypted(t *testing.T) {
	t.Parallel()
	key := must(secretbox.New(make([]byte, secretbox.Size)))(t)
	rapid.Check(t, func(rt *rapid.T) {
		text := rapid.String()
		list := rapid.SliceOfN(text, 0, 3)
		c := Config{From: text.Draw(rt, "from"), Driver: text.Draw(rt, "driver"), Env: list.Draw(rt, "env"),
			Mark: text.Draw(rt, "mark"), Notices: list.Draw(rt, "notices"),
			Policy: text.Draw(rt, "policy"), Redo: []timeline.SnapshotID{"x"}}
		s, err := encodeConfig(key, c)
		if err != nil {
			rt.Fatal(err)
		}
		got, err := openConfig(key, []byte(s))
		if err != nil || !alike(t, got, c) {
			rt.Fatalf("%+v, %v; want %+v", got, err, c)
		}
	})
}
