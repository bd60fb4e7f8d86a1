_base_ = '../_base_/mmdet.py'
