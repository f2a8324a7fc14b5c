package main

import (
	"archive/tar"
	"archive/zip"
	"compress/flate"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"time"
)

// writeArchive writes the files of tree to w, below a directory that is named as the archive is: a zip file if name
// ends in .zip, and otherwise a compressed tar file. All entries have the time at.
func writeArchive(w io.Writer, name string, tree fs.FS, at time.Time) error {
	if top, ok := strings.CutSuffix(path.Base(name), ".zip"); ok {
		return writeZip(w, top, tree, at)
	}
	top, ok := strings.CutSuffix(path.Base(name), ".tar.gz")
	if !ok {
		return fmt.Errorf("invalid archive %s: must be .tar.gz or .zip", name)
	}
	z, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	t := tar.NewWriter(z)
	return errors.Join(writeTar(t, top, tree, at), t.Close(), z.Close())
}

// writeTar writes the directories and files of tree, in the order of their names, below top, or as they are if top is
// "". They are root's, and their modes are those of mode.
func writeTar(t *tar.Writer, top string, tree fs.FS, at time.Time) error {
	return walk(tree, func(name string, info fs.FileInfo) error {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: path.Join(top, name), Mode: int64(mode(info)), ModTime: at}
		switch {
		case h.Name == ".":
			return nil
		case info.IsDir():
			h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
		default:
			h.Size = info.Size()
		}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		return copyFile(t, tree, name, info)
	})
}

func writeZip(w io.Writer, top string, tree fs.FS, at time.Time) error {
	z := zip.NewWriter(w)
	z.RegisterCompressor(zip.Deflate, func(w io.Writer) (io.WriteCloser, error) {
		return flate.NewWriter(w, flate.BestCompression)
	})
	err := walk(tree, func(name string, info fs.FileInfo) error {
		if info.IsDir() {
			return nil // names of files create them
		}
		h := &zip.FileHeader{Name: path.Join(top, name), Method: zip.Deflate, Modified: at}
		h.SetMode(mode(info))
		f, err := z.CreateHeader(h)
		if err != nil {
			return err
		}
		return copyFile(f, tree, name, info)
	})
	return errors.Join(err, z.Close())
}

// walk calls do for each directory and file of tree, in the order of their names. Others are refused: a release has
// no links.
func walk(tree fs.FS, do func(name string, info fs.FileInfo) error) error {
	return fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if !info.IsDir() && !info.Mode().IsRegular() {
			return fmt.Errorf("cannot pack %s: not a file or directory", name)
		}
		return do(name, info)
	})
}

// mode returns the permissions of an entry, which do not depend on the umask of the build.
func mode(info fs.FileInfo) fs.FileMode {
	if info.IsDir() || info.Mode()&0o100 != 0 {
		return 0o755
	}
	return 0o644
}

// copyFile writes the content of a file to w. It writes nothing for a directory.
func copyFile(w io.Writer, tree fs.FS, name string, info fs.FileInfo) error {
	if info.IsDir() {
		return nil
	}
	f, err := tree.Open(name)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return errors.Join(err, f.Close())
}
