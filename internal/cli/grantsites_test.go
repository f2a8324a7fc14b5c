//go:build linux

package cli_test

import (
	"strings"
	"testing"
)

// TestGrants_InBodies grants a secret for a string in the bodies of one endpoint.
func TestGrants_InBodies(t *testing.T) {
	t.Parallel()
	v := newGrantLab(t)
	v.need("curl")
	v.box("--grant", "key,host=api.lab.test,method=POST,path=/keep,body=/auth/token,form=token,env=KEY")
	const post = `curl -qsS -w '%{http_code}\n' https://api.lab.test/keep `
	out := v.mustIn(sandbox, post+`-H 'Content-Type: application/json' -d '{"auth": {"token":"'$KEY'"}, "other":"'$KEY'"}'; `+
		post+`-d "a=$KEY&token=$KEY"`)
	v.absent("the answer", out)
	placeholder := v.placeholder(sandbox)
	for _, want := range []string{`{"auth": {"token":"` + placeholder + `"}, "other":"` + placeholder + `"}200`,
		"a=" + placeholder + "&token=" + placeholder + "200"} {
		if !strings.Contains(out, want) { // the answer is what arrived, and the value in it became the placeholder
			t.Errorf("no %s in %s", want, out)
		}
	}
	for _, want := range []string{`body {"auth": {"token":"` + v.value + `"}, "other":"` + placeholder + `"}, <nil>`,
		"body a=" + placeholder + "&token=" + v.value + ", <nil>"} {
		if !strings.Contains(v.hits(), want+"\n") {
			t.Errorf("no %s in %s", want, v.hits())
		}
	}
	out = v.mustIn(sandbox, post+`-H 'Content-Type: application/json' -d '{"auth":{"token":"'$KEY'","token":1}}'`)
	if !strings.Contains(out, "a member twice") || !strings.HasSuffix(out, "403\n") {
		t.Errorf("a member twice: %s", out)
	}
	if out := v.run("net", "log", sandbox, "--denied"); !strings.Contains(out, "a member twice") {
		t.Errorf("the denial is not listed: %s", out)
	}
}

// TestGrants_SignForAWS has a client sign for AWS with a placeholder.
func TestGrants_SignForAWS(t *testing.T) {
	t.Parallel()
	v := newGrantLab(t)
	v.need("curl")
	const id, key = labKeyID, labSecretKey
	if out, err := v.feed(strings.NewReader(id+":"+key+"\n"), "secret", "set", "aws"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	v.box("--grant", "aws,host=s3.lab.test,sigv4=eu-west-1/s3", "--allow", "other.lab.test", "--allow", "curl.lab.test")
	const sign = `curl -qsS -w '%{http_code}\n' --user "$AWS_ACCESS_KEY_ID:$AWS_SECRET_ACCESS_KEY" --aws-sigv4 `
	out := v.mustIn(sandbox, `test ${#AWS_ACCESS_KEY_ID} = 20 -a ${#AWS_SECRET_ACCESS_KEY} = 40 -a -z "$AWS_SESSION_TOKEN"; `+
		sign+`aws:amz:eu-west-1:s3 https://s3.lab.test/keep -d content`)
	if !strings.HasSuffix(out, "content200\n") || strings.Contains(out, id) || strings.Contains(out, key) {
		t.Errorf("the answer: %s", out)
	}
	for _, scope := range []string{"eu-west-1:iam", "us-east-1:s3"} {
		if out := v.mustIn(sandbox, sign+"aws:amz:"+scope+" https://s3.lab.test/keep"); !strings.HasSuffix(out, "403\n") {
			t.Errorf("%s: %s", scope, out)
		}
	}
	v.mustIn(sandbox, sign+"aws:amz:eu-west-1:s3 https://other.lab.test/keep") // which gets the placeholder's signature
	hits := v.hits()
	if strings.Count(hits, "signed for s3.lab.test:") != 1 || strings.Count(hits, ": <nil>\n") != 1 {
		t.Errorf("the hosts got: %s", hits)
	}
}
