module github.com/liteboxd/boxlift/tools/bounds

go 1.26
