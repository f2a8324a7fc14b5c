module github.com/coppice-dev/coppice

go 1.26
