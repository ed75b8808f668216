PATH=/opt/rljob/bin:$PATH  # KubeRay starts Ray in a login shell, which forgets the image's own PATH
