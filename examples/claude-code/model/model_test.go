package model_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/examples/claude-code/model"
)

// ask posts a conversation, and returns the answer.
func ask(s *model.Server, messages string) string {
	w := httptest.NewRecorder()
	s.ServeHTTP(w,
		httptest.NewRequest(http.MethodPost, "/v1/messages",
			strings.NewReader(`{"stream":true,"tools":[{"name":"Bash"}],"messages":[`+messages+`]}`)))
	return w.Body.String()
}

const (
	asked  = `{"role":"user","content":"go"}`
	called = asked +
		`,{"role":"assistant","content":[{"type":"tool_use"}]},{"role":"user","content":[{"type":"tool_result","content":"`
)

func TestModel_PlaysAndChecksStory(t *testing.T) {
	t.Parallel()
	story := []model.Turn{{Say: "I count.", Tool: "Bash", Input: map[string]any{"command": "seq 3"}, Want: "3"},
		{Say: "Done."}}
	s := model.New(story)
	for range 2 { // an agent may repeat a request
		if got := ask(s, asked); !strings.Contains(got, `"partial_json":"{\"command\":\"seq 3\"}"`) ||
			!strings.Contains(got, `"stop_reason":"tool_use"`) {
			t.Error(got)
		}
	}
	if s.Err() == nil {
		t.Error("an incomplete story has no error")
	}
	if got := ask(s, called+`1 2 3"}]}`); !strings.Contains(got, "Done.") || s.Err() != nil {
		t.Error(got, s.Err())
	}

	for _, wrong := range []string{`1 2"}]}`, `3","is_error":true}]}`} {
		s = model.New(story)
		ask(s, asked)
		if ask(s, called+wrong); s.Err() == nil || !strings.Contains(s.Err().Error(), "turn 1: Bash") {
			t.Errorf("after %s: %v", wrong, s.Err())
		}
	}
}
