// Package model is a scripted language model: a server that speaks as much of Anthropic's Messages API as Claude
// Code needs, and answers with the turns of a script. The example and Coppice's tests import it.
package model

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
)

// Turn is one answer of the model: a tool call, or, without Tool, the last answer.
type Turn struct {
	Say   string         // text before the tool call
	Tool  string         // the called tool, such as "Bash"
	Input map[string]any // the input of the tool
	Want  string         // text that the tool's result must contain
	// Before is called once before the turn is sent.
	Before func(ctx context.Context) error
}

// Server serves a story to one agent. It is an http.Handler.
type Server struct {
	mu    sync.Mutex
	story []Turn // guarded by mu
	begun int    // guarded by mu: number of turns whose Before was called
	err   error  // guarded by mu: why the story failed
	done  bool   // guarded by mu: the last turn was sent
}

// New returns a server for the story, whose last turn must call no tool.
func New(story []Turn) *Server { return &Server{story: story} }

// Err returns why the story failed, or an error if it is not complete; nil if all of it was sent.
func (s *Server) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil && !s.done {
		return fmt.Errorf("the story has not ended: %d of %d turns were played", s.begun, len(s.story))
	}
	return s.err
}

// request is the relevant part of a POST /v1/messages.
type request struct {
	Model    string
	Stream   bool
	Messages []message
	Tools    []struct{ Name string }
}

type message struct {
	Role    string
	Content json.RawMessage // a string, or blocks
}

type block struct {
	Type    string          `json:"type"`
	Text    string          `json:"text,omitempty"`
	ID      string          `json:"id,omitempty"`
	Name    string          `json:"name,omitempty"`
	Input   any             `json:"input,omitempty"`
	Content json.RawMessage `json:"content,omitempty"` // of a tool_result
	IsError bool            `json:"is_error,omitempty"`
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == "/v1/messages/count_tokens":
		_ = json.NewEncoder(w).Encode(map[string]int{"input_tokens": 1})
		return
	case r.Method != http.MethodPost || r.URL.Path != "/v1/messages":
		http.Error(w, `{"type":"error","error":{"type":"not_found_error","message":"no such thing here"}}`,
			http.StatusNotFound)
		return
	}
	var req request
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	turn := Turn{Say: "A story"} // titles and the like are requested without tools
	if len(req.Tools) > 0 {
		turn = s.next(r.Context(), req.Messages)
	}
	answer(w, &req, turn)
}

// next returns the turn that follows the conversation. The position is derived from the conversation itself, so
// that an agent may request the same turn again.
func (s *Server) next(ctx context.Context, said []message) Turn {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, result := 0, block{}
	for _, m := range said {
		if m.Role == "assistant" {
			n++
		}
		var blocks []block
		_ = json.Unmarshal(m.Content, &blocks) // a string is irrelevant
		for _, b := range blocks {
			if b.Type == "tool_result" {
				result = b
			}
		}
	}
	switch {
	case s.err != nil:
		return Turn{Say: s.err.Error()}
	case n >= len(s.story):
		return Turn{Say: "The story is over."}
	case n > 0:
		if last := s.story[n-1]; last.Tool != "" && (result.IsError || !strings.Contains(string(result.Content), last.Want)) {
			return s.fail("turn %d: %s(%v) gave %s, and not %q", n, last.Tool, last.Input, result.Content, last.Want)
		}
	}
	turn := s.story[n]
	if n == s.begun {
		s.begun++
		if turn.Before != nil {
			if err := turn.Before(ctx); err != nil {
				return s.fail("before turn %d: %w", n+1, err)
			}
		}
	}
	s.done = s.done || n == len(s.story)-1
	return turn
}

// fail ends the story. The caller holds mu.
func (s *Server) fail(format string, args ...any) Turn {
	s.err = fmt.Errorf(format, args...)
	return Turn{Say: s.err.Error()}
}

// answer sends the turn as Server-Sent Events, or as one message if the agent does not stream.
func answer(w http.ResponseWriter, req *request, t Turn) {
	content, stop := []block{{Type: "text", Text: t.Say}}, "end_turn"
	if t.Tool != "" {
		stop = "tool_use"
		content = append(content,
			block{Type: "tool_use", ID: fmt.Sprintf("toolu_%d", len(req.Messages)), Name: t.Tool, Input: t.Input})
	}
	whole := map[string]any{
		"id": fmt.Sprintf("msg_%d", len(req.Messages)), "type": "message", "role": "assistant", "model": req.Model,
		"content": content, "stop_reason": stop, "usage": usage,
	}
	if !req.Stream {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(whole)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	send := func(event string, fields map[string]any) {
		fields["type"] = event
		data, _ := json.Marshal(fields) // maps of strings and numbers
		fmt.Fprintf(w, "event: %s\ndata: %s\n\n", event, data)
	}
	whole["content"], whole["stop_reason"] = []block{}, nil
	send("message_start", map[string]any{"message": whole})
	for i, b := range content {
		// A block begins empty; its content is sent as deltas.
		empty := map[string]any{"type": b.Type, "text": ""}
		delta := map[string]any{"type": "text_delta", "text": b.Text}
		if b.Type == "tool_use" {
			input, _ := json.Marshal(b.Input)
			empty = map[string]any{"type": b.Type, "id": b.ID, "name": b.Name, "input": map[string]any{}}
			delta = map[string]any{"type": "input_json_delta", "partial_json": string(input)}
		}
		send("content_block_start", map[string]any{"index": i, "content_block": empty})
		send("content_block_delta", map[string]any{"index": i, "delta": delta})
		send("content_block_stop", map[string]any{"index": i})
	}
	send("message_delta", map[string]any{"delta": map[string]any{"stop_reason": stop}, "usage": usage})
	send("message_stop", map[string]any{})
}

var usage = map[string]int{"input_tokens": 1, "output_tokens": 1}
