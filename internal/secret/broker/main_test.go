package broker

import (
	"os"
	"testing"

	"github.com/coppice-dev/coppice/internal/program/programtest"
)

func TestMain(m *testing.M) { os.Exit(programtest.Run(m)) }
