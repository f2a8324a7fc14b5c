package meta

import (
	"path/filepath"
	"testing"
	"time"
)

func TestAnswers_Expire(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	d := must(Open(ctx, filepath.Join(t.TempDir(), "meta.db")))(t)
	defer d.Close()
	now := time.Unix(1e9, 0)
	d.Now = func() time.Time { return now }
	ok(t, d.KeepAnswer(ctx, "a", []byte("one"), time.Hour))
	ok(t, d.KeepAnswer(ctx, "a", []byte("two"), time.Hour))
	if b := must(d.Answer(ctx, "a"))(t); string(b) != "two" {
		t.Errorf("%q", b)
	}
	if b := must(d.Answer(ctx, "b"))(t); b != nil {
		t.Errorf("of nothing: %q", b)
	}
	now = now.Add(time.Hour)
	if b := must(d.Answer(ctx, "a"))(t); b != nil {
		t.Errorf("after its time: %q", b)
	}
	ok(t, d.KeepAnswer(ctx, "b", []byte("three"), time.Hour))
	n := 0
	ok(t, d.rows(ctx, "SELECT count(*) FROM answers", func(s scanner) error { return s.Scan(&n) }))
	if n != 1 {
		t.Errorf("%d are left", n)
	}
	ok(t, d.KeepAnswer(ctx, "b", []byte{}, 0))
	if b := must(d.Answer(ctx, "b"))(t); b != nil {
		t.Errorf("after it was forgotten: %q", b)
	}
}
