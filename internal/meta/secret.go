package meta

import (
	"encoding/json"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/seal"
)

// What may hold secrets and must come back as it was is sealed by a key that lies beside
// the database: the texts of policies, what was answered, and of a record what is in
// private. What a version before wrote in clear is sealed when this one opens it.

// What values are sealed for: one of a kind is not taken for one of another.
const (
	forConfig = "config"
	forPolicy = "policy"
	forAnswer = "answer"
)

// private is the part of a Config that is sealed. Its fields are those of Config.
type private struct {
	From    string      `json:"from,omitempty"`
	Timed   []TimedRule `json:"timed,omitempty"`
	Env     []string    `json:"env,omitempty"`
	Learnt  []string    `json:"learnt,omitempty"`
	Mark    string      `json:"mark,omitempty"`
	Notices []string    `json:"notices,omitempty"`
	Halted  *Halt       `json:"halted,omitempty"`
	Run     *wire.Run   `json:"run,omitempty"`

	Labels map[string]string `json:"labels,omitempty"`
}

// stored is a Config as it is kept.
type stored struct {
	Config
	Sealed string `json:"sealed,omitempty"` // private
}

// sealConfig gives a config as it is kept.
func sealConfig(key seal.Key, c Config) (s stored, err error) {
	p, err := json.Marshal(
		private{From: c.From, Timed: c.Timed, Env: c.Env, Learnt: c.Learnt, Mark: c.Mark, Notices: c.Notices,
			Halted: c.Halted, Run: c.Run, Labels: c.Labels})
	if err != nil {
		return s, err
	}
	c.From, c.Timed, c.Env, c.Learnt, c.Mark, c.Notices, c.Halted, c.Run = "", nil, nil, nil, "", nil, nil, nil
	c.Labels = nil
	s.Config = c
	s.Sealed, err = key.Seal(forConfig, p)
	return s, err
}

// encodeConfig is sealConfig, as text.
func encodeConfig(key seal.Key, c Config) (string, error) {
	s, err := sealConfig(key, c)
	if err != nil {
		return "", err
	}
	b, err := json.Marshal(s)
	return string(b), err
}

// openConfig reads a config as it is kept, or as a version before kept it.
func openConfig(key seal.Key, text []byte) (Config, error) {
	var s stored
	if err := json.Unmarshal(text, &s); err != nil || s.Sealed == "" {
		return s.Config, err
	}
	p, err := key.Open(forConfig, s.Sealed)
	if err == nil {
		err = json.Unmarshal(p, &s.Config)
	}
	return s.Config, err
}

// openText reads a text that may be sealed.
func (d *DB) openText(purpose, text string) (string, error) {
	if !seal.Is(text) {
		return text, nil
	}
	b, err := d.key.Open(purpose, text)
	if err != nil {
		return "", fault.New(fault.Corrupt, "cannot decrypt a %s of %s", purpose, d.path).Because(err).WithHint(corruptHint)
	}
	return string(b), nil
}
